package server

import (
	"net/url"
	"slices"
	"strings"
)

// Router finds the route of a request's path. H is what an interface does at a route. A pattern consists
// of parts between slashes; a part in braces, such as {tag}, is a variable, which stands for one part of a
// path. A Router may be used concurrently when all routes have been added.
type Router[H any] struct {
	// Name is the variable that stands for a repository's name. It takes one or more parts of a path.
	Name string
	// Escaped says that paths are escaped as clients sent them: a part is unescaped after the path was
	// split.
	Escaped bool
	// AnySlash says that a slash at the end of a path means nothing. Otherwise it may be left out where
	// the pattern ends in one.
	AnySlash bool
	// Empty says that a variable may stand for an empty part, which the interface refuses with an error that
	// names the variable. Otherwise such a path has no route.
	Empty bool
	// NameEnd is a part that no repository's name has; "": any part may be in one.
	NameEnd string

	routes []*Route[H]
}

// Route is a pattern with what is done at it.
type Route[H any] struct {
	Pattern string
	Do      H
	parts   []string
	slash   bool // the pattern ends in a slash
}

// Found is a route that a path has, with the texts of its variables. NameParts is how many parts of the
// path, as the client sent it, are the repository's name.
type Found[H any] struct {
	*Route[H]
	Values    map[string]string
	NameParts int
}

// Add adds a route. Of two patterns that a path fits, the one with more parts comes first: otherwise a
// repository's name in a short pattern would take parts that are fixed words in a longer one, such as
// "tag". Of patterns with as many parts, the one with fewer variables comes first.
func (r *Router[H]) Add(pattern string, do H) *Route[H] {
	rt := &Route[H]{Pattern: pattern, Do: do, parts: pathParts(pattern), slash: strings.HasSuffix(pattern, "/")}
	if rt.slash && len(rt.parts) > 1 {
		rt.parts = rt.parts[:len(rt.parts)-1]
	}
	r.routes = append(r.routes, rt)
	slices.SortStableFunc(r.routes, func(a, b *Route[H]) int {
		if d := len(b.parts) - len(a.parts); d != 0 {
			return d
		}
		return strings.Count(a.Pattern, "{") - strings.Count(b.Pattern, "{")
	})
	return rt
}

// Routes returns the routes in the order in which Match tries them.
func (r *Router[H]) Routes() []*Route[H] { return r.routes }

// Match returns the route of a path. Its Route is nil if there is none.
func (r *Router[H]) Match(path string) (found Found[H]) {
	if !strings.HasPrefix(path, "/") {
		return found
	}
	parts := pathParts(path)
	slash := len(parts) > 1 && parts[len(parts)-1] == ""
	if slash {
		parts = parts[:len(parts)-1]
	}
	if r.Escaped {
		for i, part := range parts {
			var err error
			if parts[i], err = url.PathUnescape(part); err != nil {
				return found
			}
		}
	}
	for _, rt := range r.routes {
		if slash && !rt.slash && !r.AnySlash || !r.fits(rt, parts) {
			continue
		}
		more := len(parts) - len(rt.parts)
		found = Found[H]{rt, make(map[string]string, strings.Count(rt.Pattern, "{")), more + 1}
		for _, part := range rt.parts {
			n := 1
			name, variable := variableOf(part)
			if variable && name == r.Name {
				n += more
			}
			if variable {
				found.Values[name] = strings.Join(parts[:n], "/")
			}
			parts = parts[n:]
		}
		return found
	}
	return found
}

// fits says whether the parts of a path fit a route.
func (r *Router[H]) fits(rt *Route[H], parts []string) bool {
	more := len(parts) - len(rt.parts)
	if more < 0 {
		return false
	}
	for _, want := range rt.parts {
		name, variable := variableOf(want)
		n := 1
		if variable && name == r.Name {
			n, more = n+more, 0
			// A part that was unescaped may have slashes of its own.
			if r.NameEnd != "" && slices.Contains(strings.Split(strings.Join(parts[:n], "/"), "/"), r.NameEnd) {
				return false
			}
		}
		if !variable && parts[0] != want || variable && n == 1 && parts[0] == "" && !r.Empty {
			return false
		}
		parts = parts[n:]
	}
	return len(parts) == 0
}

// variableOf returns the name of the variable that a part of a pattern is.
func variableOf(part string) (name string, ok bool) {
	if len(part) > 2 && part[0] == '{' {
		return part[1 : len(part)-1], true
	}
	return "", false
}

func pathParts(path string) []string { return strings.Split(strings.TrimPrefix(path, "/"), "/") }
