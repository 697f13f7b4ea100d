package ui

import (
	"strings"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
)

// place is a repository or, if repository is "", a namespace. Policies, rules and roles belong to
// places of both kinds, and their pages share handlers.
type place struct{ namespace, repository string }

// place returns the repository or namespace to which the request's path belongs.
func (q *request) place() place {
	if repository := q.repository(); repository != "" {
		namespace, _, _ := strings.Cut(repository, "/")
		return place{namespace, repository}
	}
	return place{namespace: q.values["namespace"]}
}

// Name returns the name of the repository or namespace.
func (p place) Name() string {
	if p.repository != "" {
		return p.repository
	}
	return p.namespace
}

// Namespace returns the name of the namespace.
func (p place) Namespace() string { return p.namespace }

// IsNamespace says whether the place is a namespace.
func (p place) IsNamespace() bool { return p.repository == "" }

// Home returns the path of the place's first page, followed by the given path below it.
func (p place) Home(below string) string {
	if p.repository != "" {
		return link("/ui/repositories/{repository}", p.repository) + below
	}
	return link("/ui/namespaces/{namespace}", p.namespace) + below
}

// At returns the place as inputs of the management API name it.
func (p place) At() api.At {
	if p.repository != "" {
		return api.At{Repository: p.repository}
	}
	return api.At{Namespace: p.namespace}
}

// PolicyAt is At for the operations on policies.
func (p place) PolicyAt() api.PolicyAt { return api.PolicyAt(p.At()) }

// whole returns the namespace as inputs of the operations on auto-pruning name it.
func (p place) whole() api.PruneNamespace { return api.PruneNamespace{Namespace: p.namespace} }

// api returns a path of the management API below the place. Each argument takes the place of a %s.
func (p place) api(format string, values ...string) string {
	if p.repository != "" {
		return apiPath("/repository/%s", p.repository) + apiPath(format, values...)
	}
	return apiPath("/organization/%s", p.namespace) + apiPath(format, values...)
}

// placePage returns the frame of a page of the place. `current` is the link of the tab.
func (q *request) placePage(p place, current string) page {
	if p.repository != "" {
		return q.repositoryPage(p.repository, current)
	}
	out := page{Title: p.namespace, Section: "namespaces", Crumbs: []crumb{{"Namespaces", "/ui/namespaces"}}}
	out.Tabs = q.tabs(namespaceTabs, p.Home(""), current, auth.OfNamespace(p.namespace))
	return out
}

// namespaceTabs are the pages of each namespace, with their paths below it.
var namespaceTabs = []placeTab{
	{"", "Overview", 0}, {"/-/policies", "Policies", auth.Maintain}, {"/-/teams", "Teams", auth.Administer},
	{"/-/robots", "Robots", auth.Administer}, {"/-/settings", "Settings", 0},
}

// placeTab is a page of a namespace or a repository: its path below the place's own page, and the
// access without which the page shows nothing, 0 for none.
type placeTab struct {
	path, text string
	access     auth.Access
}

// tabs returns the tabs of a place that lead the client somewhere. The pages themselves don't rely
// on that: the management API decides what they show.
func (q *request) tabs(list []placeTab, home, current string, place auth.Resource) (out []tab) {
	for _, t := range list {
		if t.access == 0 || q.may(t.access, place) {
			out = append(out, tab{t.text, home + t.path, t.path == current})
		}
	}
	return out
}

// may says whether the client has an access to a repository or a namespace. Pages use it to leave
// out what the API would refuse, and for nothing else.
func (q *request) may(access auth.Access, of auth.Resource) bool {
	err := q.ui.server.Authorize(q.Context(), access, of)
	q.w.Header().Del("WWW-Authenticate") // Authorize sets it for clients that aren't logged in
	return err == nil
}

// mayDelete says whether the client may delete the place.
func (q *request) mayDelete(p place) bool {
	if p.repository != "" {
		return q.may(auth.Delete, auth.OfRepository(p.repository))
	}
	return q.may(auth.Administer, auth.OfNamespace(p.namespace))
}

// addPlace adds a page, or a form, to all repositories and all namespaces.
func (u *UI) addPlace(path string, get, post func(q *request) error) {
	u.add("/ui/repositories/{repository}/-"+path, get, post)
	u.add("/ui/namespaces/{namespace}/-"+path, get, post)
}
