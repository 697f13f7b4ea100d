package report

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// dockerOf starts a Docker with these answers, by path, and returns its address. It answers 404 to
// other paths, and 500 to `broken`.
func dockerOf(t *testing.T, answers map[string]string, broken string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, ok := answers[r.URL.Path]
		switch {
		case r.URL.Path == broken:
			http.Error(w, `{"message":"server error"}`, http.StatusInternalServerError)
		case !ok:
			http.Error(w, `{"message":"No such image"}`, http.StatusNotFound)
		default:
			fmt.Fprint(w, body)
		}
	}))
	t.Cleanup(s.Close)
	return strings.Replace(s.URL, "http://", "tcp://", 1)
}

// namesOf returns the names of images, sorted.
func namesOf(images []Image) []string {
	var names []string
	for _, i := range images {
		names = append(names, i.String())
	}
	slices.Sort(names)
	return names
}

// TestDocker: Docker has a running and a stopped container, and one whose image was deleted. If
// something can't be read, no image may be returned.
func TestDocker(t *testing.T) {
	t.Parallel()
	answers := map[string]string{
		"/containers/json": `[{"Id":"c1","Names":["/web"],"Image":"r.example/web:v1","ImageID":"sha256:a","Created":1000000000,"State":"running"},
			{"Id":"c2","Names":["/old"],"Image":"r.example/web:v1","ImageID":"sha256:a","Created":1000000000,"State":"exited"},
			{"Id":"c3","Names":[],"Image":"r.example/gone:v1","ImageID":"sha256:c","Created":1000000000}]`,
		"/containers/c1/json":   `{"Id":"c1","Config":{"Image":"r.example/web:v1"}}`,
		"/images/sha256:a/json": `{"Id":"sha256:a","RepoDigests":["r.example/web@` + one + `"]}`,
	}
	list, err := Docker(t.Context(), dockerOf(t, answers, ""))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, i := range list {
		got = append(got, i.String()+" "+i.UsedBy)
		if i.Tag != "" && !i.At.Equal(time.Unix(1e9, 0)) {
			t.Errorf("%s counts at %v", i, i.At)
		}
	}
	want := []string{"r.example/web:v1 container web", "r.example/web@" + one + " container web",
		"r.example/web:v1 container old", "r.example/web@" + one + " container old", "r.example/gone:v1 container c3"}
	if !slices.Equal(got, want) {
		t.Errorf("found %v, want %v", got, want)
	}
	for _, path := range []string{"/containers/json", "/containers/c1/json", "/images/sha256:a/json"} {
		if list, err := Docker(t.Context(), dockerOf(t, answers, path)); err == nil || len(list) > 0 || !strings.Contains(err.Error(), "server error") {
			t.Errorf("%s fails: %v, %v", path, list, err)
		}
	}
	for _, bad := range []string{"", "ssh://host", "unix://" + filepath.Join(t.TempDir(), "none")} {
		if _, err := Docker(t.Context(), bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

// TestRunningInDocker has the forms in which Docker names the image of a container. Whatever the
// form, the host of the name counts by which the container was made. The tag counts with what it
// named then and names now, and with all between them if Docker knows no digest.
func TestRunningInDocker(t *testing.T) {
	t.Parallel()
	const web, id = "r.example/shop/web", "sha256:3333333333333333333333333333333333333333333333333333333333333333"
	for name, c := range map[string]struct {
		listed, made  string // the name by which the container was made
		digests, tags string // of the image; JSON
		want          []string
		since         bool
	}{
		"pulled":                               {web + ":v1", web + ":v1", `["` + web + `@` + one + `"]`, `["` + web + `:v1"]`, []string{web + ":v1", web + "@" + one}, false},
		"through a mirror by another name":     {web + ":v1", web + ":v1", `["mirror.example/cache/web@` + one + `"]`, `["` + web + `:v1"]`, []string{"mirror.example/cache/web@" + one, web + " with the id " + id, web + ":v1", web + "@" + one}, false},
		"another repository's name":            {web + ":v1", web + ":v1", `["r.example/shop/base@` + one + `"]`, `null`, []string{"r.example/shop/base@" + one, web + " with the id " + id, web + ":v1", web + "@" + one}, false},
		"two digests":                          {web + ":v1", web + ":v1", `["` + web + `@` + one + `","` + web + `@` + two + `"]`, `null`, []string{web + ":v1", web + "@" + one, web + "@" + two}, false},
		"loaded from a file":                   {web + ":v1", web + ":v1", `[]`, `["` + web + `:v1"]`, []string{web + " with the id " + id, web + ":v1"}, true},
		"no digests":                           {web + ":v1", web + ":v1", `["<none>@<none>"]`, `null`, []string{web + " with the id " + id, web + ":v1"}, true},
		"the image was deleted":                {web + ":v1", web + ":v1", ``, ``, []string{web + " with the id " + id, web + ":v1"}, true},
		"the tag was pulled anew":              {id, web + ":v1", `["` + web + `@` + one + `"]`, `[]`, []string{web + ":v1", web + "@" + one}, false},
		"the same, and no digest":              {id, web + ":v1", `[]`, `[]`, []string{web + " with the id " + id, web + ":v1"}, true},
		"the container was deleted":            {web + ":v1", ``, `["` + web + `@` + one + `"]`, `null`, []string{web + ":v1", web + "@" + one}, false},
		"made by digest":                       {web + "@" + two, web + "@" + two, `["` + web + `@` + two + `"]`, `null`, []string{web + "@" + two}, false},
		"made by id":                           {id, id, `["mirror.example/web@` + one + `"]`, `["` + web + `:v1"]`, []string{"mirror.example/web@" + one, web + " with the id " + id, web + ":v1", web + "@" + one}, false},
		"made by a short id":                   {"333333333333", "333333333333", `["` + web + `@` + one + `"]`, `[]`, []string{web + "@" + one}, false},
		"Docker Hub":                           {"alpine:3", "alpine:3", `["alpine@` + one + `"]`, `["alpine:3"]`, []string{"docker.io/library/alpine:3", "docker.io/library/alpine@" + one}, false},
		"a copy of Docker Hub in our registry": {"alpine:3", "alpine:3", `["r.example/hub/alpine@` + one + `"]`, `["alpine:3"]`, []string{"docker.io/library/alpine with the id " + id, "docker.io/library/alpine:3", "docker.io/library/alpine@" + one, "r.example/hub/alpine@" + one}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			answers := map[string]string{
				"/containers/json": fmt.Sprintf(`[{"Id":"c","Names":["/web"],"Image":%q,"ImageID":%q,"Created":1000000000}]`, c.listed, id),
			}
			if c.made != "" {
				answers["/containers/c/json"] = fmt.Sprintf(`{"Config":{"Image":%q}}`, c.made)
			}
			if c.digests != "" {
				answers["/images/"+id+"/json"] = fmt.Sprintf(`{"RepoDigests":%s,"RepoTags":%s}`, c.digests, c.tags)
			}
			list, err := Docker(t.Context(), dockerOf(t, answers, ""))
			if got := namesOf(list); err != nil || !slices.Equal(got, c.want) {
				t.Errorf("found %q, %v\nwant %q", got, err, c.want)
			}
			for _, i := range list {
				if i.Tag != "" && (i.Since != c.since || !i.At.Equal(time.Unix(1e9, 0))) {
					t.Errorf("%s counts at %v, since then: %v", i, i.At, i.Since)
				}
			}
		})
	}
}
