package ui

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// route is a path of the UI. A variable of its pattern, such as {tag}, is one part of the path;
// {repository} is one or more parts. What belongs to a repository or a namespace follows "/-/",
// which no repository's name can contain. A nil handler is a method that the path doesn't have.
type route struct {
	pattern   string
	parts     []string
	get, post func(q *request) error
}

func (u *UI) add(pattern string, get, post func(q *request) error) {
	u.routes = append(u.routes, &route{pattern: pattern, parts: pathParts(pattern), get: get, post: post})
	slices.SortStableFunc(u.routes, func(a, b *route) int {
		if d := len(b.parts) - len(a.parts); d != 0 {
			return d
		}
		return strings.Count(a.pattern, "{") - strings.Count(b.pattern, "{")
	})
}

func (rt *route) allow() string {
	switch {
	case rt.post == nil:
		return http.MethodGet + ", " + http.MethodHead
	case rt.get == nil:
		return http.MethodPost
	}
	return http.MethodGet + ", " + http.MethodHead + ", " + http.MethodPost
}

// match returns the route of an escaped path with the values of its variables, nil if there is
// none.
func (u *UI) match(path string) (*route, map[string]string) {
	parts := pathParts(path)
	for i := range parts {
		part, err := url.PathUnescape(parts[i])
		if err != nil {
			return nil, nil
		}
		parts[i] = part
	}
	for _, rt := range u.routes {
		if values, ok := rt.match(parts); ok {
			return rt, values
		}
	}
	return nil, nil
}

func pathParts(path string) []string { return strings.Split(strings.TrimPrefix(path, "/"), "/") }

func (rt *route) match(parts []string) (map[string]string, bool) {
	more := len(parts) - len(rt.parts)
	values := make(map[string]string)
	for _, want := range rt.parts {
		n := 1
		if want == "{repository}" {
			n += more
		}
		if n < 1 || n > len(parts) {
			return nil, false
		}
		value := strings.Join(parts[:n], "/")
		parts = parts[n:]
		name, variable := strings.CutPrefix(want, "{")
		switch {
		case !variable && value != want:
			return nil, false
		case want == "{repository}" && (value == "-" || strings.Contains(value, "/-/") || strings.HasPrefix(value, "-/") || strings.HasSuffix(value, "/-")):
			return nil, false
		case variable:
			if value == "" {
				return nil, false
			}
			values[strings.TrimSuffix(name, "}")] = value
		}
	}
	return values, len(parts) == 0
}

// link returns the path of a page. Each argument takes the place of a variable of the pattern, in
// order; a repository's slashes stay as they are.
func link(pattern string, values ...string) string {
	parts := pathParts(pattern)
	for i, part := range parts {
		if !strings.HasPrefix(part, "{") || len(values) == 0 {
			continue
		}
		names := []string{values[0]}
		if part == "{repository}" {
			names = strings.Split(values[0], "/")
		}
		for j := range names {
			names[j] = url.PathEscape(names[j])
		}
		parts[i], values = strings.Join(names, "/"), values[1:]
	}
	return "/" + strings.Join(parts, "/")
}

// apiPath returns a path of the management API below its root. Each argument takes the place of a
// %s, escaped as one part of a path.
func apiPath(format string, values ...string) string {
	for _, value := range values {
		format = strings.Replace(format, "%s", strings.ReplaceAll(url.PathEscape(value), "%", "\x00"), 1)
	}
	return strings.ReplaceAll(format, "\x00", "%")
}

// addRoutes lists all pages and forms.
func (u *UI) addRoutes() {
	u.addOverview()
	u.addCleanup()
	u.addAudit()
	u.addAccounts()
	u.addSystem()
	u.add("/ui/repositories", showRepositories, nil)
	u.add("/ui/repositories/{repository}", showRepository, nil)
	u.add("/ui/repositories/{repository}/-/tags", nil, changeTags)
	u.add("/ui/namespaces", showNamespaces, nil)
	u.addPattern()
	u.addImages()
	u.addPolicies()
	u.addRuns()
	u.addFree()
	u.addHolds()
	u.addSettings()
	u.addTrash()
	u.addNamespace()
}
