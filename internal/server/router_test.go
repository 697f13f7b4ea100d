package server

import (
	"maps"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestRouter: a path leads to the pattern with the most parts that it fits, and a repository's name may look
// like parts of patterns.
func TestRouter(t *testing.T) {
	t.Parallel()
	table := func(r *Router[string], patterns ...string) *Router[string] {
		for _, p := range patterns {
			r.Add(p, p)
		}
		return r
	}
	oci := table(&Router[string]{Name: "name"}, "/v2/", "/v2/_catalog", "/v2/{name}/tags/list", "/v2/{name}/blobs/uploads/", "/v2/{name}/blobs/{ref}", "/v2/{name}/manifests/{ref}")
	api := table(&Router[string]{Name: "repository", Escaped: true, AnySlash: true, Empty: true}, "/api/repository", "/api/repository/{repository}", "/api/repository/{repository}/tag/", "/api/repository/{repository}/tag/{tag}", "/api/user/{user}")
	ui := table(&Router[string]{Name: "repository", Escaped: true, NameEnd: "-"}, "/ui/", "/ui/{repository}", "/ui/{repository}/-/tags", "/ui/{repository}/-/{digest}")
	type values = map[string]string
	for _, tt := range []struct {
		router        *Router[string]
		path, pattern string
		values        values
		parts         int
	}{
		{oci, "/v2", "/v2/", nil, 1},
		{oci, "/v2/", "/v2/", nil, 1},
		{oci, "/v2//", "", nil, 0},
		{oci, "//v2/", "", nil, 0},
		{oci, "v2/", "", nil, 0},
		{oci, "", "", nil, 0},
		{oci, "*", "", nil, 0},
		{oci, "/v2/_catalog", "/v2/_catalog", nil, 1},
		{oci, "/v2/_catalog/", "", nil, 0},
		{oci, "/v2/a/blobs/uploads", "/v2/{name}/blobs/uploads/", values{"name": "a"}, 1},
		{oci, "/v2/a/blobs/uploads/", "/v2/{name}/blobs/uploads/", values{"name": "a"}, 1},
		{oci, "/v2/a/blobs/uploads/blobs/uploads/", "/v2/{name}/blobs/uploads/", values{"name": "a/blobs/uploads"}, 3},
		{oci, "/v2/x/manifests/y/manifests/z", "/v2/{name}/manifests/{ref}", values{"name": "x/manifests/y", "ref": "z"}, 3},
		{oci, "/v2/a/manifests/", "", nil, 0},
		{oci, "/v2//manifests/x", "", nil, 0},
		{oci, "/v2/a%2Fb/manifests/x", "/v2/{name}/manifests/{ref}", values{"name": "a%2Fb", "ref": "x"}, 1},
		{api, "/api/repository/", "/api/repository", nil, 1},
		{api, "/api/repository/a/tag", "/api/repository/{repository}/tag/", values{"repository": "a"}, 1},
		{api, "/api/repository/a/b/tag/v%2F1/", "/api/repository/{repository}/tag/{tag}", values{"repository": "a/b", "tag": "v/1"}, 2},
		{api, "/api/repository/a%2Fb", "/api/repository/{repository}", values{"repository": "a/b"}, 1},
		{api, "/api/repository/a%zz", "", nil, 0},
		{api, "/api/user/a/b", "", nil, 0},
		{api, "/api/user//", "/api/user/{user}", values{"user": ""}, 1},
		{api, "/api/repository/a/tag//", "/api/repository/{repository}/tag/{tag}", values{"repository": "a", "tag": ""}, 1},
		{ui, "/ui/", "/ui/", nil, 1},
		{ui, "/ui/a/b", "/ui/{repository}", values{"repository": "a/b"}, 2},
		{ui, "/ui/a/b/", "", nil, 0},
		{ui, "/ui/a/-/tags", "/ui/{repository}/-/tags", values{"repository": "a"}, 1},
		{ui, "/ui/a/-/nothing", "/ui/{repository}/-/{digest}", values{"repository": "a", "digest": "nothing"}, 1},
		{ui, "/ui/a/-/-/tags", "", nil, 0},
		{ui, "/ui/-/tags", "", nil, 0},
		{ui, "/ui/a%2F-%2Fb", "", nil, 0},
		{ui, "/ui/-%2Fa", "", nil, 0},
	} {
		found := tt.router.Match(tt.path)
		pattern := ""
		if found.Route != nil {
			pattern = found.Pattern
		}
		if pattern != tt.pattern || !maps.Equal(found.Values, tt.values) || found.NameParts != tt.parts {
			t.Errorf("%s leads to %q with %v and %d parts of a name, want %q with %v and %d", tt.path, pattern, found.Values, found.NameParts, tt.pattern, tt.values, tt.parts)
		}
	}
}

// TestRouterFindsWhatWasFilledIn: the path that a pattern becomes when its variables are replaced leads to a
// route whose pattern becomes that path too.
func TestRouterFindsWhatWasFilledIn(t *testing.T) {
	t.Parallel()
	part := rapid.SampledFrom([]string{"a", "tags", "list", "b", "{tag}", "{repository}"})
	rapid.Check(t, func(t *rapid.T) {
		r := &Router[int]{Name: "repository"}
		for i := range rapid.IntRange(1, 6).Draw(t, "routes") {
			parts := rapid.SliceOfNDistinct(part, 1, 5, rapid.ID).Draw(t, "pattern")
			r.Add("/"+strings.Join(parts, "/"), i)
		}
		text := rapid.SampledFrom([]string{"a", "tags", "list", "b", "x"})
		rt := rapid.SampledFrom(r.Routes()).Draw(t, "route")
		name := strings.Join(rapid.SliceOfN(text, 1, 3).Draw(t, "name"), "/")
		path := strings.NewReplacer("{repository}", name, "{tag}", text.Draw(t, "tag")).Replace(rt.Pattern)
		found := r.Match(path)
		if found.Route == nil {
			t.Fatalf("%s, which is %s, leads nowhere", path, rt.Pattern)
		}
		if back := strings.NewReplacer("{repository}", found.Values["repository"], "{tag}", found.Values["tag"]).Replace(found.Pattern); back != path {
			t.Fatalf("%s leads to %s, which is %s", path, found.Pattern, back)
		}
		if len(strings.Split(found.Pattern, "/")) < len(strings.Split(rt.Pattern, "/")) {
			t.Fatalf("%s leads to %s, although %s has more parts", path, found.Pattern, rt.Pattern)
		}
	})
}
