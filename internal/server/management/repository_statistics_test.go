package management_test

import (
	"fmt"
	"testing"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/server/servertest"
)

type statisticsList struct {
	Repositories []struct {
		Repository string
		Size       *struct {
			Blobs, Bytes int64
			Exact        bool
		}
		LastPulledAt *string          `json:"last_pulled_at"`
		RecentPulls  *api.RecentPulls `json:"recent_pulls"`
	}
}

// TestRepositoryStatistics: clients pull from a repository. A list with statistics must say how often
// each repository was pulled and what it stores, and a list without them must not.
func TestRepositoryStatistics(t *testing.T) {
	t.Parallel()
	r, flush := counting(t)
	r.Put(t, "acme/app", "v1", r.Simple(t, "acme/app", 1, nil))
	r.Put(t, "acme/never", "v1", r.Simple(t, "acme/never", 2, nil))
	for range 3 {
		r.Do(t, "GET", "/v2/acme/app/manifests/v1", "").WantStatus(t, 200)
	}
	flush(3)
	for path, want := range map[string]string{
		"?statistics=true": "[acme/app 3 true acme/never 0 false]",
		"?statistics=true&names=acme/never,acme/none,acme/app,acme": "[acme/never 0 false acme/app 3 true]",
		"?statistics=true&contains=never":                           "[acme/never 0 false]",
		"?statistics=true&namespace=acme&sort=-name&limit=1":        "[acme/never 0 false]",
	} {
		var list statisticsList
		r.Manage(t, "GET", "/repository"+path, "").Into(t, 200, &list)
		var got []any
		for _, l := range list.Repositories {
			if l.RecentPulls == nil || l.Size == nil || l.Size.Blobs != 1 || l.Size.Bytes == 0 || !l.Size.Exact {
				t.Fatalf("%s: %+v", path, l)
			}
			p := l.RecentPulls
			got = append(got, l.Repository, p.Count, l.LastPulledAt != nil)
			if n := len(p.Days); n == 0 || n > 2 || p.Days[n-1]+p.Days[0]*int64(n-1) != p.Count || p.Display != fmt.Sprint(p.Count) || p.Since == nil {
				t.Errorf("%s: %+v", path, p)
			}
		}
		if fmt.Sprint(got) != want {
			t.Errorf("%s: %v, want %s", path, got, want)
		}
	}
	var plain statisticsList
	r.Manage(t, "GET", "/repository?names=acme/app", "").Into(t, 200, &plain)
	if l := plain.Repositories; len(l) != 1 || l[0].Size != nil || l[0].RecentPulls != nil {
		t.Errorf("without being asked for statistics: %+v", l)
	}
	for _, query := range []string{"contains=a", "prefix=a", "namespace=acme", "visibility=public", "starred=true"} {
		r.Manage(t, "GET", "/repository?names=acme/app&"+query, "").Refused(t, 400, "invalid_request", "names")
	}
}

// TestNamedRepositoriesOfViewer: a list of given repositories has only those from which the client
// may pull.
func TestNamedRepositoriesOfViewer(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *servertest.Options) { o.Access = &auth.Options{AnonymousPull: true} })
	r.AddAccount(t, "root", true)
	root := r.as("root")
	for _, path := range []string{"acme/public", "acme/private", "acme/own", "beta/app"} {
		root.Put(t, path, "v1", root.Simple(t, path, 1, nil))
	}
	root.Manage(t, "POST", "/repository/acme/public/changevisibility", `{"visibility":"public"}`).WantStatus(t, 200)
	for name, place := range map[string]string{"reader": "acme", "single": "acme/own"} {
		r.AddAccount(t, name, false)
		r.Grant(t, place, name, auth.Reader)
	}
	r.AddAccount(t, "stranger", false)
	for who, want := range map[string]string{
		"root": "[beta/app acme/own acme/private acme/public]", "reader": "[acme/own acme/private acme/public]",
		"single": "[acme/own acme/public]", "stranger": "[acme/public]",
	} {
		var list statisticsList
		r.as(who).Manage(t, "GET", "/repository?names=beta/app,acme/own,acme/private,acme/public&statistics=true", "").Into(t, 200, &list)
		got := []string{}
		for _, l := range list.Repositories {
			got = append(got, l.Repository)
		}
		if fmt.Sprint(got) != want {
			t.Errorf("%s sees %v, want %s", who, got, want)
		}
	}
}
