package ui

import (
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/purser-registry/purser/internal/server/ui/chart"
	"github.com/purser-registry/purser/internal/server/ui/format"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/catalog/trash"
	"github.com/purser-registry/purser/internal/policy"
)

func (u *UI) addNamespace() { u.add("/ui/namespaces/{namespace}", showNamespace, nil) }

type namespaceData struct {
	Place        place
	Info         api.NamespaceDetails
	Teams        []api.TeamView
	Quota        *api.QuotaView
	Policies     []policyRow
	SeesPolicies bool
	Table        repositoryTable // the first repositories
	More         bool            // there are more
	Plot         *chart.Plot     // of pulls, nil if there is nothing to show
}

// Shared returns the bytes that other namespaces have, too, nil if the client may not know.
func (d namespaceData) Shared() *int64 {
	if d.Info.Size.OwnBytes == nil {
		return nil
	}
	n := d.Info.Size.Bytes - *d.Info.Size.OwnBytes
	return &n
}

// showNamespace describes a namespace.
func showNamespace(q *request) error {
	p := q.place()
	d := namespaceData{Place: p}
	of := api.InNamespace{Namespace: p.namespace}
	var err error
	if d.Info, err = run(q, api.GetNamespace, api.NamespaceSizes{InNamespace: of, SizeLinks: fewLinks}); err != nil {
		return err
	}
	for _, t := range d.Info.Teams {
		d.Teams = append(d.Teams, t)
	}
	slices.SortFunc(d.Teams, func(a, b api.TeamView) int { return strings.Compare(a.Name, b.Name) })
	if d.Quota, _, err = q.quota(p.namespace); err != nil {
		return err
	}
	d.Policies, err = q.policyRows(p.At(), "", &p)
	if err != nil && !hidden(err) {
		return err
	}
	d.SeesPolicies = err == nil
	if err := d.listRepositories(q); err != nil {
		return err
	}
	if d.Plot, err = pullPlot(q, api.GetNamespaceHistory, api.NamespaceHistory{InNamespace: of, HistoryDays: lastDays}); err != nil {
		return err
	}
	out := q.placePage(p, "")
	out.Data = d
	if q.query("done") == "created" {
		out.Notice = &notice{Text: "The namespace was created."}
		if len(d.Policies) > 0 {
			out.Notice.Text += " Its policy observes: look at what it would delete, and switch it on then."
		}
	}
	out.Same = []same{command("purser namespace show %s", p.namespace), call("GET", p.api(""))}
	return q.show("namespace", out)
}

// namespaceRows is how many repositories the page of a namespace has.
const namespaceRows = 15

// listRepositories sets the first repositories of the namespace.
func (d *namespaceData) listRepositories(q *request) error {
	list, err := run(q, api.ListRepositories, api.RepositoryQuery{Namespace: d.Info.Name, Limit: namespaceRows, Statistics: true})
	if err != nil && !hidden(err) {
		return err
	}
	d.Table.Rows, d.More = rowsOf(list.Repositories), list.NextPage != ""
	d.Table.head(plainEnds)
	return nil
}

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
	made, lacks, to := []string{"Namespace " + format.Clip(255, name) + " was created"}, []string(nil), ""
	if slices.ContainsFunc([]string{"bytes", "repositories", "tags"}, func(field string) bool { return strings.TrimSpace(q.form.Get(field)) != "" }) {
		if _, err := run(q, api.CreateQuota, api.QuotaNew{At: p.At(), Body: quota}); err != nil {
			lacks, to = append(lacks, "It has no quota: "+format.Sentence(err.Error())), p.Home("/-/settings")
		} else {
			made = append(made, "it has a quota")
		}
	}
	if wantsPolicy {
		if err := q.createPreset(p, preset); err != nil {
			lacks = append(lacks, "It has no policy: "+format.Sentence(err.Error()))
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
		return fieldError{field, format.Sentence(text)}
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
				Bad: true, Text: "Repository " + format.Clip(255, path) + " is there, but its visibility may not have been set to " + format.Clip(20, body.Visibility) + ". " + format.Sentence(err.Error()),
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

func (u *UI) addTrash() { u.add("/ui/trash", showTrash, changeTrash) }

type trashData struct {
	scopedList
	Items []trash.Trashed
	Pages pages
	Typed typed
}

// showTrash lists deleted repositories and namespaces. The parameter deleted is what was deleted
// just now.
func showTrash(q *request) error {
	var n *notice
	namespace := q.query("namespace")
	if q.URL.Query().Has("deleted") {
		id := q.query("deleted")
		var t trash.Trashed
		err := error(nil)
		if id != "" {
			t, err = run(q, api.GetTrash, api.TrashItem{ID: id})
		}
		switch {
		case err != nil && !hidden(err):
			return err
		case id == "":
			n = &notice{Text: "It is deleted for good: this registry has no trash."}
		case err == nil:
			n = &notice{
				Text: format.Clip(255, t.Name) + " is deleted. It can be restored until " + format.Exact(t.ExpiresAt) + ".",
				Undo: &undo{Action: "/ui/trash", Text: "Restore it", Fields: []field{{"do", "restore"}, {"id", id}, {"namespace", namespace}}},
			}
			if t.IsNamespace() {
				n.Undo.Fields = n.Undo.Fields[:2]
			}
		}
	}
	return q.showTrash(http.StatusOK, namespace, n)
}

func (q *request) showTrash(status int, namespace string, n *notice) error {
	list, err := run(q, api.ListTrash, api.TrashQuery{Namespace: namespace, Cursor: q.query("page")})
	frame, err := q.chooseNamespace(err)
	if err != nil {
		return err
	}
	frame.Namespace = namespace
	return q.showStatus(status, "trash", page{
		Title: "Trash", Section: "trash", Notice: n, Lead: "Deleted repositories and namespaces, as long as they can be restored.",
		Data: trashData{frame, list.Items, q.pagesOf(q.keep("namespace"), list.Next), q.refused},
		Same: []same{command("purser trash list"), command("purser trash restore ID"), call("GET", "/trash")},
	})
}

// changeTrash restores something or deletes it for good.
func changeTrash(q *request) error {
	id, namespace := q.form.Get("id"), q.form.Get("namespace")
	var err error
	n := &notice{}
	switch q.form.Get("do") {
	case "restore":
		var restored api.RestoredTrash
		restored, err = run(q, api.RestoreTrash, api.TrashRestoration{TrashItem: api.TrashItem{ID: id}, Body: api.RestoreForm{As: q.form.Get("as")}})
		n.Text = format.Clip(255, restored.Name) + " is back, with its tags, policies and rights."
	case "purge":
		_, err = run(q, api.PurgeTrash, api.TrashItem{ID: id})
		n.Text = "It is deleted for good."
	default:
		err = formError("The form doesn't say what to do.")
	}
	status := http.StatusOK
	if err != nil {
		if status = statusOf(err); status == 0 {
			status = http.StatusBadRequest
			if _, ok := errors.AsType[formError](err); !ok {
				return err
			}
		}
		n = q.refuse(err, nil)
	}
	return q.showTrash(status, namespace, n)
}
