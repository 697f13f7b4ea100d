package ui

import (
	"net/http"
	"slices"
	"strings"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/policy"
)

// newNamespace is the form that creates a namespace. Only those who operate the registry may send it,
// and only they set quotas.
type newNamespace struct {
	Typed   typed
	Presets []policy.Preset
}

// Quota returns the fields of the quota.
func (n newNamespace) Quota() quotaInputs { return quotaInputs{"create", n.Typed, nil} }

// namespaceForm returns the form that creates a namespace, nil if the client may not.
func (q *request) namespaceForm(t typed) *newNamespace {
	if !q.may(api.CreateNamespace.Access, auth.Registry) {
		return nil
	}
	return &newNamespace{t, policy.Presets}
}

// createNamespace creates a namespace, then gives it a quota and a policy if the form asks for them. If
// one of these is refused, the namespace stays, and the page says what it lacks.
func createNamespace(q *request) error {
	name := strings.TrimSpace(q.form.Get("name"))
	p := place{namespace: name}
	refused := func(err error) error {
		status := formStatus(err)
		if status == 0 {
			return err
		}
		return q.showNamespaces(status, q.typedForm(namedError(err, "name"), quotaFields), nil)
	}
	quota, err := quotaForm(q.form)
	if err != nil {
		return refused(err)
	}
	preset, wantsPolicy := policy.PresetOf(q.form.Get("preset"))
	if text := q.form.Get("preset"); text != "" && !wantsPolicy {
		return refused(fieldError{"preset", "There is no such preset."})
	}
	if _, err := run(q, api.CreateNamespace, api.NamespaceNew{Body: api.NewNamespace{Name: name}}); err != nil {
		return refused(err)
	}
	made, lacks, to := []string{"Namespace " + clip(255, name) + " was created"}, []string(nil), ""
	if slices.ContainsFunc([]string{"bytes", "repositories", "tags"}, func(field string) bool { return strings.TrimSpace(q.form.Get(field)) != "" }) {
		if _, err := run(q, api.CreateQuota, api.QuotaNew{At: p.At(), Body: quota}); err != nil {
			lacks, to = append(lacks, "It has no quota: "+sentence(err.Error())), p.Home("/-/settings")
		} else {
			made = append(made, "it has a quota")
		}
	}
	if wantsPolicy {
		if err := q.createPreset(p, preset); err != nil {
			lacks = append(lacks, "It has no policy: "+sentence(err.Error()))
			if to == "" {
				to = p.Home("/-/policies/new?preset=" + preset.Name)
			}
		} else {
			made = append(made, "it has a policy")
		}
	}
	if len(lacks) == 0 {
		return q.redirect(p.Home("?done=created"))
	}
	text := strings.Join(made, "; ") + ". " + strings.Join(lacks, " ")
	return q.showNamespaces(http.StatusOK, typed{}, &notice{Bad: true, Text: text, To: &crumb{"Finish it there", to}})
}

// namedError returns an error of a field if the registry's reason is about the name that the field has.
func namedError(err error, field string) error {
	if text := err.Error(); statusOf(err) != 0 && (strings.Contains(text, "exists already") || strings.Contains(text, " is no name for ")) {
		return fieldError{field, sentence(text)}
	}
	return err
}

// createPreset saves a preset as a policy of a place. It begins by observing, as in the editor.
func (q *request) createPreset(p place, preset policy.Preset) error {
	d, err := parseDocument(preset.Policy)
	if err != nil {
		return err
	}
	d["mode"] = []byte(`"observe"`)
	_, err = run(q, api.CreatePolicy, api.PolicyNew{PolicyAt: p.PolicyAt(), PolicyConfirmation: q.confirmation(), Body: api.PolicyText(d.text())})
	return err
}

// newRepository is the form that creates a repository.
type newRepository struct {
	Typed      typed
	Namespace  string   // "" for a choice
	Namespaces []string // in which the client may create repositories, as far as they are known
	// Visibility says whether the form offers one: without access control, none has an effect. Default is
	// that of repositories for which none is chosen.
	Visibility bool
	Default    string
	Public     bool // the client may make a repository public
	Free       bool // the client may write any namespace
}

// Chosen returns the namespace that the form has at first.
func (d newRepository) Chosen() string {
	return d.Typed.Value("create", "namespace", d.Namespace)
}

// ownNamespaces is how many namespaces of an account the form offers. An account with more writes the name.
const ownNamespaces = 100

// repositoryForm returns the form that creates a repository in a namespace or, if that is "", in one of
// those in which the client may; nil if the client may nowhere.
func (q *request) repositoryForm(namespace string, t typed) (*newRepository, error) {
	d := &newRepository{Typed: t, Namespace: namespace, Free: q.may(api.CreateNamespace.Access, auth.Registry), Visibility: !q.open()}
	if d.Visibility {
		d.Default = catalog.Private
		if q.ui.server.Auth().PublicByDefault() {
			d.Default = catalog.Public
		}
	}
	administers := func(name string) bool { return q.may(auth.Administer, auth.OfNamespace(name)) }
	switch {
	case namespace != "":
		if !q.may(auth.Push, auth.OfNamespace(namespace)) {
			return nil, nil
		}
		d.Public = d.Default == catalog.Public || administers(namespace)
		return d, nil
	case d.Free:
		d.Public = true
		return d, nil
	case q.account() == "":
		return nil, nil
	}
	own, err := run(q, api.GetOwnUser, api.Paging{Limit: ownNamespaces})
	if err != nil {
		if hidden(err) {
			return nil, nil
		}
		return nil, err
	}
	d.Public, d.Free = d.Default == catalog.Public, own.NextPage != ""
	for _, n := range own.Organizations {
		// The account may have a role that the credentials of the request may not use.
		if n.CanCreateRepo && q.may(auth.Push, auth.OfNamespace(n.Name)) {
			d.Namespaces, d.Public = append(d.Namespaces, n.Name), d.Public || n.IsOrgAdmin
		}
	}
	if len(d.Namespaces) == 0 && !d.Free {
		return nil, nil
	}
	return d, nil
}

// createRepository creates an empty repository.
func createRepository(q *request) error {
	namespace, name := strings.TrimSpace(q.form.Get("namespace")), strings.Trim(strings.TrimSpace(q.form.Get("name")), "/")
	body := api.NewRepository{Namespace: namespace, Repository: name, Visibility: q.form.Get("visibility")}
	_, err := run(q, api.CreateRepository, api.RepositoryNew{Body: body})
	path := namespace + "/" + name
	if err == nil {
		return q.redirect(link("/ui/repositories/{repository}", path) + "?done=created")
	}
	status := formStatus(err)
	// The repository is made before its visibility is set.
	if status == 0 || status >= http.StatusInternalServerError {
		if _, missing := run(q, api.GetRepository, api.RepositorySizes{InRepository: repositoryOf(path), SizeLinks: api.SizeLinks{Links: 1}}); missing == nil && body.Visibility != "" {
			return q.showRepositories(http.StatusOK, typed{}, &notice{
				Bad: true, Text: "Repository " + clip(255, path) + " is there, but its visibility may not have been set to " + clip(20, body.Visibility) + ". " + sentence(err.Error()),
				To: &crumb{"Look at its settings", link("/ui/repositories/{repository}", path) + "/-/settings"},
			})
		}
	}
	if status == 0 {
		return err
	}
	return q.showRepositories(status, q.typedForm(namedError(err, "name"), map[string]string{"repository": "name"}), nil)
}

// addCreation adds the forms of the lists that create what they list.
func (u *UI) addCreation() {
	u.add("/ui/repositories", showRepositories, createRepository)
	u.add("/ui/namespaces", func(q *request) error { return q.showNamespaces(http.StatusOK, typed{}, nil) }, createNamespace)
}
