package management_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// lists returns the names in the client's lists of repositories, which must agree, and those of
// its namespaces with the numbers of their repositories.
func (r *registry) lists(t *testing.T) (repositories, namespaces string) {
	t.Helper()
	var catalog struct{ Repositories []string }
	var token []string
	if r.Do(t, "GET", "/v2/_catalog", "").StatusCode == 401 { // clients without an account fetch an anonymous token then
		token = servertest.Bearer(r.Token(t, nil, "registry:catalog:*"))
	}
	r.Do(t, "GET", "/v2/_catalog", "", token...).Into(t, 200, &catalog)
	// The pages of one entry must contain the same.
	var paged []string
	for path := "/v2/_catalog?n=1"; path != ""; {
		var page struct{ Repositories []string }
		a := r.Do(t, "GET", path, "", token...).Into(t, 200, &page)
		paged, path = append(paged, page.Repositories...), a.Next(t)
	}
	if !slices.Equal(paged, catalog.Repositories) {
		t.Errorf("the catalog has %q, its pages %q", catalog.Repositories, paged)
	}
	for _, sort := range []string{"name", "-name", "created", "-created"} {
		var found []string
		for next := ""; ; {
			var page struct {
				Repositories []struct{ Repository string }
				NextPage     string `json:"next_page"`
			}
			r.Manage(t, "GET", "/repository?limit=2&sort="+sort+"&next_page="+next, "").Into(t, 200, &page)
			for _, one := range page.Repositories {
				found = append(found, one.Repository)
			}
			if next = page.NextPage; next == "" {
				break
			}
		}
		if slices.Sort(found); !slices.Equal(found, catalog.Repositories) {
			t.Errorf("the catalog has %q, the list by %s %q", catalog.Repositories, sort, found)
		}
	}
	var list struct {
		Namespaces []struct {
			Name         string
			Repositories struct{ Count int }
		}
	}
	r.Manage(t, "GET", "/organization", "").Into(t, 200, &list)
	var names []string
	for _, n := range list.Namespaces {
		names = append(names, fmt.Sprint(n.Name, ":", n.Repositories.Count))
		var one struct{ Repositories int }
		a := r.Manage(t, "GET", "/organization/"+n.Name, "")
		if a.StatusCode == 401 || a.StatusCode == 403 {
			continue // the list shows a namespace with a public repository; its description needs a role
		}
		a.Into(t, 200, &one)
		if one.Repositories != n.Repositories.Count {
			t.Errorf("namespace %s: %d repositories, in the list %d", n.Name, one.Repositories, n.Repositories.Count)
		}
	}
	return strings.Join(catalog.Repositories, " "), strings.Join(names, " ")
}

// TestListsShowReadable: accounts, robots and tokens with different rights list repositories and
// namespaces. Each list must have just what the client may read.
func TestListsShowReadable(t *testing.T) {
	t.Parallel()
	for _, byDefault := range []bool{false, true} {
		t.Run(fmt.Sprintf("public by default %v", byDefault), func(t *testing.T) {
			t.Parallel()
			c := restricted(t, func(o *auth.Options) { o.PublicByDefault = byDefault })
			for _, path := range []string{"acme", "acme-x/a", "acme/b", "beta/one", "beta/public", "beta/two", "gamma/a"} {
				c.root.Manage(t, "POST", "/repository", `{"repository":"`+path+`"}`).WantStatus(t, 201)
			}
			c.root.Manage(t, "POST", "/organization", `{"name":"empty"}`).WantStatus(t, 201)
			c.root.Manage(t, "POST", "/repository/beta/public/changevisibility", `{"visibility":"public"}`).WantStatus(t, 200)
			c.root.Manage(t, "POST", "/repository/beta/two/changevisibility", `{"visibility":"private"}`).WantStatus(t, 200)
			c.Grant(t, "beta/two", "stranger", auth.Reader)
			c.Grant(t, "empty", "writer", auth.Reader)
			limited := c.robot(t, "limited", auth.Limits{Repositories: []string{"acme/*", "beta/**"}})
			silent := c.robot(t, "silent", auth.Limits{Actions: []auth.Action{auth.ActionPush}})
			_, secret, err := c.Auth.CreateToken(t.Context(), &auth.Principal{Name: "root"}, "", auth.Limits{Repositories: []string{"beta/*"}}, nil)
			if err != nil {
				t.Fatal(err)
			}
			part := &registry{c.With(servertest.Basic("root", secret))}
			const all, allNames = "acme acme-x/a acme/b acme/team/app beta/one beta/public beta/two gamma/a", "acme:3 acme-x:1 beta:3 empty:0 gamma:1"
			type shown struct {
				who                      *registry
				repositories, namespaces string
			}
			rows := map[string]shown{
				"root":          {c.root, all, allNames},
				"reader":        {c.reader, "acme acme/b acme/team/app beta/public", "acme:3 beta:1"},
				"writer":        {c.writer, "acme acme/b acme/team/app beta/public", "acme:3 beta:1 empty:0"},
				"stranger":      {c.stranger, "beta/public beta/two", "beta:2"},
				"nobody":        {c.nobody, "beta/public", "beta:1"},
				"limited robot": {limited, "acme/b beta/public", "acme:1 beta:1"},
				"limited root":  {part, "beta/one beta/public beta/two", "beta:3"},
			}
			if byDefault {
				const most = "acme acme-x/a acme/b acme/team/app beta/one beta/public gamma/a"
				for _, name := range []string{"reader", "nobody"} {
					rows[name] = shown{rows[name].who, most, "acme:3 acme-x:1 beta:2 gamma:1"}
				}
				rows["writer"] = shown{c.writer, most, "acme:3 acme-x:1 beta:2 empty:0 gamma:1"}
				rows["stranger"] = shown{c.stranger, all, "acme:3 acme-x:1 beta:3 gamma:1"}
				rows["limited robot"] = shown{limited, "acme/b beta/one beta/public", "acme:1 beta:2"}
			}
			for name, want := range rows {
				t.Run(name, func(t *testing.T) {
					if repositories, namespaces := want.who.lists(t); repositories != want.repositories || namespaces != want.namespaces {
						t.Errorf("%q, %q; want %q, %q", repositories, namespaces, want.repositories, want.namespaces)
					}
				})
			}
			silent.Manage(t, "GET", "/repository", "").WantStatus(t, 403)
			if !byDefault {
				for _, path := range []string{"/organization/%s", "/repository?namespace=%s", "/repository?sort=created&namespace=%s"} {
					sameRefusal(t, c.stranger.Manage(t, "GET", fmt.Sprintf(path, "gamma"), ""), c.stranger.Manage(t, "GET", fmt.Sprintf(path, "nomma"), ""), "gamma", "nomma")
				}
			}
			for _, sort := range []string{"name", "-created"} {
				var in struct{ Repositories []struct{ Repository string } }
				c.stranger.Manage(t, "GET", "/repository?namespace=beta&visibility=private&sort="+sort, "").Into(t, 200, &in)
				if len(in.Repositories) != 1 || in.Repositories[0].Repository != "beta/two" {
					t.Errorf("private repositories of beta: %+v", in)
				}
			}
			bearer := servertest.Bearer(c.stranger.Token(t, nil, "registry:catalog:*"))
			var catalog struct{ Repositories []string }
			c.Do(t, "GET", "/v2/_catalog", "", bearer...).Into(t, 200, &catalog)
			if got := strings.Join(catalog.Repositories, " "); got != rows["stranger"].repositories {
				t.Errorf("with a registry token: %q", got)
			}
		})
	}
}

// TestVisibilityInClosedRegistry: a repository's visibility takes effect at once, and answers
// show it. The right to push isn't enough to make a repository public.
func TestVisibilityInClosedRegistry(t *testing.T) {
	t.Parallel()
	c := restricted(t)
	c.Grant(t, "acme", "maintainer", auth.Administrator)
	const manifest = "/v2/acme/team/app/manifests/v1"
	for range 2 {
		for _, visibility := range []string{"private", "public"} {
			public, status := visibility == "public", 401
			if public {
				status = 200
			}
			a := c.maintainer.Manage(t, "POST", "/repository/acme/team/app/changevisibility", `{"visibility":"`+visibility+`"}`).WantStatus(t, 200)
			if a.Header.Get("Warning") != "" {
				t.Errorf("Warning %q", a.Header.Get("Warning"))
			}
			c.nobody.Do(t, "GET", manifest, "").WantStatus(t, status)
			var told struct {
				Visibility string
				IsPublic   bool `json:"is_public"`
			}
			if c.reader.Manage(t, "GET", "/repository/acme/team/app", "").Into(t, 200, &told); told.Visibility != visibility || told.IsPublic != public {
				t.Errorf("%s: %+v", visibility, told)
			}
		}
	}
	c.writer.Manage(t, "POST", "/repository/acme/team/app/changevisibility", `{"visibility":"private"}`).WantStatus(t, 403)
	c.writer.Manage(t, "POST", "/repository", `{"repository":"acme/p","visibility":"public"}`).WantStatus(t, 403)
	c.maintainer.Manage(t, "GET", "/repository/acme/p", "").WantStatus(t, 404)
	c.writer.Manage(t, "POST", "/repository", `{"repository":"acme/p","visibility":"private"}`).WantStatus(t, 201)
	c.maintainer.Manage(t, "POST", "/repository", `{"repository":"acme/q","visibility":"public","starred":true}`).WantStatus(t, 201)
	c.nobody.Manage(t, "GET", "/repository/acme/q", "").WantStatus(t, 200)
	c.nobody.Manage(t, "GET", "/repository/acme/p", "").WantStatus(t, 401)
	// A repository of the same name isn't public because the deleted one was.
	c.maintainer.Manage(t, "DELETE", "/repository/acme/q", "").WantStatus(t, 204)
	c.maintainer.Manage(t, "POST", "/repository", `{"repository":"acme/q"}`).WantStatus(t, 201)
	c.nobody.Manage(t, "GET", "/repository/acme/q", "").WantStatus(t, 401)
}

// TestStarsOfAccounts: each account has stars of its own, of repositories that it may read.
func TestStarsOfAccounts(t *testing.T) {
	t.Parallel()
	c := restricted(t)
	starred := func(who *registry) string {
		t.Helper()
		var names []string
		for _, sort := range []string{"name", "created"} {
			var list struct {
				Repositories []struct {
					Repository string
					IsStarred  bool `json:"is_starred"`
				}
			}
			who.Manage(t, "GET", "/repository?starred=true&sort="+sort, "").Into(t, 200, &list)
			for _, one := range list.Repositories {
				if !one.IsStarred {
					t.Errorf("%+v", one)
				}
				names = append(names, one.Repository)
			}
			var told struct {
				IsStarred bool `json:"is_starred"`
			}
			if who.Manage(t, "GET", "/repository/acme/team/app", "").Into(t, 200, &told); told.IsStarred != (len(list.Repositories) > 0) {
				t.Errorf("the list has %+v, the repository %+v", list, told)
			}
		}
		return strings.Join(names, " ")
	}
	const star = `{"namespace":"acme","repository":"team/app"}`
	c.reader.Manage(t, "POST", "/user/starred", star).WantStatus(t, 201)
	c.reader.Manage(t, "POST", "/user/starred", star).WantStatus(t, 201)
	c.root.Manage(t, "POST", "/user/starred", star).WantStatus(t, 201)
	c.nobody.Manage(t, "POST", "/user/starred", star).WantStatus(t, 401)
	c.stranger.Manage(t, "POST", "/user/starred", star).WantStatus(t, 403)
	both := "acme/team/app acme/team/app"
	if a, b, d := starred(c.reader), starred(c.root), starred(c.writer); a != both || b != both || d != "" {
		t.Errorf("stars of reader %q, root %q, writer %q", a, b, d)
	}
	c.root.Manage(t, "DELETE", "/user/starred/acme/team/app", "").WantStatus(t, 204)
	if a, b := starred(c.reader), starred(c.root); a != both || b != "" {
		t.Errorf("stars of reader %q, root %q", a, b)
	}
	if err := c.Auth.DeleteAccount(t.Context(), "reader"); err != nil {
		t.Fatal(err)
	}
	c.root.Manage(t, "DELETE", "/repository/acme/team/app", "").WantStatus(t, 204)
}

// TestDiscoveryReadsOnly: a client mounts a blob without naming a source. The registry must find
// the blob only in repositories from which the client may pull.
func TestDiscoveryReadsOnly(t *testing.T) {
	t.Parallel()
	c := restricted(t)
	c.AddAccount(t, "other", false)
	other := &registry{c.With(servertest.As("other"))}
	c.root.Manage(t, "POST", "/organization", `{"name":"beta"}`).WantStatus(t, 201)
	c.Grant(t, "beta", "other", auth.Writer)
	secret := c.root.Push(t, "acme/team/app", "secret")
	n := 0
	mount := func(who *registry, headers ...string) int {
		t.Helper()
		n++
		return who.Do(t, "POST", fmt.Sprintf("/v2/beta/into%d/blobs/uploads/?mount=%s", n, secret), "", headers...).StatusCode
	}
	if got := mount(other); got != 202 {
		t.Errorf("a blob of an unreadable repository: %d", got)
	}
	c.Grant(t, "beta", "reader", auth.Writer)
	if got := mount(c.reader); got != 201 {
		t.Errorf("a blob of a readable namespace: %d", got)
	}
	c.root.Manage(t, "DELETE", fmt.Sprintf("/repository/beta/into%d", n), "").WantStatus(t, 204)
	// A registry token that doesn't contain the source can't mount from it.
	narrow := servertest.Bearer(c.reader.Token(t, nil, fmt.Sprintf("repository:beta/into%d:pull,push", n+1)))
	if got := mount(c.registry, narrow...); got != 202 {
		t.Errorf("with a token without the source: %d", got)
	}
	wide := servertest.Bearer(c.reader.Token(t, nil, fmt.Sprintf("repository:beta/into%d:pull,push", n+1), "repository:acme/team/app:pull"))
	if got := mount(c.registry, wide...); got != 201 {
		t.Errorf("with a token with the source: %d", got)
	}
	c.root.Manage(t, "DELETE", fmt.Sprintf("/repository/beta/into%d", n), "").WantStatus(t, 204)
	c.Grant(t, "acme/team/app", "other", auth.Reader)
	if got := mount(other); got != 201 {
		t.Errorf("a blob of a readable repository: %d", got)
	}
	c.root.Manage(t, "DELETE", fmt.Sprintf("/repository/beta/into%d", n), "").WantStatus(t, 204)
	c.Grant(t, "acme/team/app", "other", auth.NoRole)
	if got := mount(other); got != 202 {
		t.Errorf("after the role was taken away: %d", got)
	}
	c.root.Manage(t, "POST", "/repository/acme/team/app/changevisibility", `{"visibility":"public"}`).WantStatus(t, 200)
	narrow = servertest.Bearer(other.Token(t, nil, fmt.Sprintf("repository:beta/into%d:pull,push", n+1)))
	if got := mount(c.registry, narrow...); got != 201 {
		t.Errorf("a blob of a public repository: %d", got)
	}
}
