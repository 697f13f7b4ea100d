package ui

import (
	"net/http"
	"strings"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/policy"
)

func (u *UI) addFree() {
	for _, path := range []string{"/ui/namespaces/{namespace}/-/free", "/ui/runs/free"} {
		u.add(path, func(q *request) error { return q.showFree(http.StatusOK, q.freeing(), nil) }, freeBytes)
	}
}

// freeData is the content of the page that frees bytes in a namespace or in the whole registry.
type freeData struct {
	Namespace        string // "" for the registry
	Bytes, UnusedFor string // as somebody has typed them
	Typed            typed
	Plan             *autoprune.FreePlan // nil: nobody has asked for one
	MayFree          bool
}

// freedRepositories is how many repositories of a plan the page lists.
const freedRepositories = 50

// Shown returns the first repositories of the plan.
func (d freeData) Shown() []autoprune.FreeRepository {
	return d.Plan.Repositories[:min(len(d.Plan.Repositories), freedRepositories)]
}

// Action is where the form is sent to.
func (d freeData) Action() string {
	if d.Namespace == "" {
		return "/ui/runs/free"
	}
	return link("/ui/namespaces/{namespace}/-/free", d.Namespace)
}

// api returns the path of the operation that plans, and carries out a plan.
func (d freeData) api() string {
	if d.Namespace == "" {
		return "/autoprune/free"
	}
	return apiPath("/organization/%s/autoprune/free", d.Namespace)
}

// freeing returns the page's content with what a form has sent.
func (q *request) freeing() freeData {
	d := freeData{Namespace: q.values["namespace"], Bytes: strings.TrimSpace(q.form.Get("bytes")), UnusedFor: "30d"}
	if age := strings.TrimSpace(q.form.Get("unused")); age != "" {
		d.UnusedFor = age
	}
	return d
}

// freeAt returns the page that frees bytes in a namespace or, if that is "", in the registry; "" if the
// client may not do that.
func (q *request) freeAt(namespace string) string {
	access, of := auth.Administer, auth.OfNamespace(namespace)
	if namespace == "" {
		access, of = auth.Operate, auth.Registry
	}
	if !q.may(access, of) {
		return ""
	}
	return freeData{Namespace: namespace}.Action()
}

// readPruning returns an error if the client may not even see how the namespace or, if that is "", the
// registry is pruned.
func (q *request) readPruning(namespace string) error {
	if namespace == "" {
		_, err := run(q, api.ListWaitingAsks, api.WaitingQuery{Limit: 1})
		return err
	}
	_, err := run(q, api.GetPruneState, api.PruneNamespace{Namespace: namespace})
	return err
}

// showFree shows the form, and the plan if there is one.
func (q *request) showFree(status int, d freeData, n *notice) error {
	if err := q.readPruning(d.Namespace); err != nil {
		return err
	}
	d.MayFree = q.freeAt(d.Namespace) != ""
	out := page{Section: "runs", Crumbs: []crumb{{"Pruning", "/ui/runs"}}}
	out.Same = []same{command("purser prune free 500GB"), call("POST", d.api())}
	if d.Namespace != "" {
		p := place{namespace: d.Namespace}
		out = q.placePage(p, "/-/policies")
		out.Crumbs = append(out.Crumbs, crumb{p.Name(), p.Home("")}, crumb{"Policies", p.Home("/-/policies")})
		out.Same = []same{command("purser prune free 500GB %s", p.Name()), call("POST", d.api())}
	}
	out.Title, out.Tabs, out.Notice, out.Data = "Free bytes", nil, n, d
	out.Lead = "Deletes the least recently used tags, until garbage collection can free as many bytes. What is protected, deployed, kept by policies or exempted stays."
	return q.showStatus(status, "free", out)
}

// freeBytes makes a plan, or carries out the plan that the page has shown.
func freeBytes(q *request) error {
	d := q.freeing()
	in := api.FreeInput{PolicyAt: api.PolicyAt{Namespace: d.Namespace}}
	var answer api.FreeAnswer
	var err error
	switch q.form.Get("do") {
	case "plan":
		var size policy.Size
		if size, err = policy.ParseSize(strings.ReplaceAll(d.Bytes, " ", "")); err != nil {
			err = fieldError{"bytes", sentence(err.Error())}
			break
		}
		in.Body.Bytes, in.Body.UnusedFor = int64(size), d.UnusedFor
		if answer, err = run(q, api.FreeBytes, in); err == nil {
			d.Plan = answer.Plan
			return q.showFree(http.StatusOK, d, nil)
		}
	case "free":
		if in.Body.Plan = q.form.Get("plan"); in.Body.Plan == "" {
			err = formError("Ask for a preview first.")
			break
		}
		if answer, err = run(q, api.FreeBytes, in); err == nil {
			return q.showFree(http.StatusOK, d, startedNotice(answer.Started))
		}
	default:
		err = formError("The form doesn't say what to do.")
	}
	if status := formStatus(err); status != 0 {
		n := q.refuse(err, map[string]string{"unused_for": "unused", "unusedFor": "unused"})
		d.Typed = q.refused
		return q.showFree(status, d, n)
	}
	return err
}

// startedNotice says which runs will delete the tags of a plan.
func startedNotice(f *autoprune.Freeing) *notice {
	switch {
	case f == nil || len(f.Namespaces) == 0:
		return &notice{Bad: true, Text: "Nothing was started: the namespace is gone."}
	case len(f.Namespaces) == 1:
		return &notice{Text: "The next run of namespace " + f.Namespaces[0] + " deletes these tags, except those that were used since. The list of runs tells of it, and the run can be undone."}
	}
	return &notice{Text: "The next runs of " + plural(len(f.Namespaces), "namespace", "namespaces") + " delete these tags, except those that were used since. The list of runs tells of them, and each run can be undone."}
}
