package ui

import "strings"

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
	for _, t := range namespaceTabs {
		out.Tabs = append(out.Tabs, tab{t.text, p.Home(t.path), t.path == current})
	}
	return out
}

// namespaceTabs are the pages of each namespace, with their paths below it.
var namespaceTabs = []struct{ path, text string }{
	{"", "Overview"}, {"/-/policies", "Policies"}, {"/-/teams", "Teams"}, {"/-/robots", "Robots"}, {"/-/settings", "Settings"},
}

// addPlace adds a page, or a form, to all repositories and all namespaces.
func (u *UI) addPlace(path string, get, post func(q *request) error) {
	u.add("/ui/repositories/{repository}/-"+path, get, post)
	u.add("/ui/namespaces/{namespace}/-"+path, get, post)
}
