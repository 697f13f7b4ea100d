package management_test

import (
	"testing"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// TestFiguresTellNothing: a client pushes a blob and reads the figures about its repository,
// then a repository that the client may not read gets the same blob. The client's figures must
// stay the same, so that nobody learns by them which blobs exist. Clients that may read every
// repository see the difference.
func TestFiguresTellNothing(t *testing.T) {
	t.Parallel()
	c := restricted(t)
	c.Grant(t, "acme", "maintainer", auth.Administrator)
	c.Grant(t, "acme/team/app", "stranger", auth.Maintainer)
	_, secret, err := c.Auth.CreateToken(t.Context(), &auth.Principal{Name: "root"}, "", auth.Limits{Repositories: []string{"acme/**"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	limited := &registry{c.With(servertest.Basic("root", secret))}
	reading := []string{"GET /repository/acme/team/app", "GET /organization/acme"}
	previews := []string{"POST /repository/acme/team/app/autoprunepolicy/preview", "POST /organization/acme/autoprunepolicy/preview"}
	type figures struct {
		Size struct {
			Bytes int64
			Own   *int64 `json:"own_bytes"`
		}
		Freed *int64 `json:"bytes_freed"`
	}
	type view struct {
		name     string
		who      *registry
		requests []string
	}
	maintaining := append(append([]string{}, reading...), previews...)
	views := []view{
		{"administrator of the namespace", c.maintainer, maintaining},
		{"maintainer of the repository", c.stranger, []string{previews[0], reading[0]}},
		{"writer", c.writer, reading},
		{"reader", c.reader, reading},
		{"administrator of the registry, limited to the namespace", limited, []string{previews[0], reading[0]}},
	}
	ask := func(who *registry, request string) (f figures) {
		t.Helper()
		method, path, body := "GET", request[len("GET "):], ""
		if request[:4] == "POST" {
			method, path, body = "POST", request[len("POST "):], `{"method": "number_of_tags", "numTags": 1}`
		}
		who.Manage(t, method, path, body).Into(t, 200, &f)
		return f
	}
	image := func(who *registry, repository, content string) string {
		return servertest.Image(t, who.Push(t, repository, content), nil, nil)
	}
	c.writer.Put(t, "acme/team/app", "v0", image(c.writer, "acme/team/app", "candidate"))
	c.writer.Put(t, "acme/team/app", "v2", c.writer.Simple(t, "acme/team/app", 8, nil))
	before := map[string]figures{}
	for _, request := range maintaining {
		before[request] = ask(c.root, request)
	}
	for range 2 {
		for _, v := range views {
			for _, request := range v.requests {
				if f := ask(v.who, request); f.Size.Own != nil || f.Freed != nil {
					t.Errorf("%s: %s: own_bytes %v, bytes_freed %v, want neither", v.name, request, f.Size.Own, f.Freed)
				} else if request[:3] == "GET" && f.Size.Bytes == 0 {
					t.Errorf("%s: %s: no size at all", v.name, request)
				}
			}
		}
		c.root.Put(t, "hidden/app", "v1", image(c.root, "hidden/app", "candidate"))
	}
	for _, request := range maintaining {
		f, was := ask(c.root, request), before[request]
		if request[:4] == "POST" {
			f.Size.Own, was.Size.Own = f.Freed, was.Freed
		}
		if f.Size.Own == nil || was.Size.Own == nil || *f.Size.Own >= *was.Size.Own {
			t.Errorf("root: %s: %v after another repository got the blobs, %v before", request, f, was)
		}
	}
}
