package management_test

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/pullstats"
	"github.com/purser-registry/purser/internal/pullstats/statsdb"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// TestPullHistory: clients pull from two repositories. The API must show the pulls of each day
// for the registry, a namespace, a repository, a tag and a manifest, list what was pulled most
// and what wasn't, and know no history of what doesn't exist.
func TestPullHistory(t *testing.T) {
	t.Parallel()
	r, flush := counting(t)
	a := r.Put(t, "acme/web/app", "v1", r.Simple(t, "acme/web/app", 1, nil))
	r.Put(t, "acme/web/app", "gone", r.Simple(t, "acme/web/app", 1, nil))
	r.Put(t, "other/app", "v1", r.Simple(t, "other/app", 2, nil))
	r.Put(t, "other/never", "v1", r.Simple(t, "other/never", 2, nil))
	for _, ref := range []string{"acme/web/app/manifests/v1", "acme/web/app/manifests/v1", "acme/web/app/manifests/gone", "acme/web/app/manifests/" + a.String(), "other/app/manifests/v1"} {
		r.Do(t, "GET", "/v2/"+ref, "").WantStatus(t, 200)
	}
	flush(5)
	r.Manage(t, "DELETE", "/repository/acme/web/app/tag/gone", "")
	for path, want := range map[string]int64{
		"": 5, "/organization/acme": 4, "/organization/other": 1, "/repository/acme/web/app": 4, "/repository/other/never": 0,
		"/repository/acme/web/app/tag/v1": 2, "/repository/acme/web/app/manifest/" + a.String(): 4,
	} {
		var h api.PullHistory
		before := time.Now().UTC().Format(time.DateOnly)
		r.Manage(t, "GET", path+"/pull_statistics/history?days=7", "").Into(t, 200, &h)
		if len(h.Days) == 0 || h.Since == nil || h.Total != want || !recent(h.RecordedSince) || *h.Since > before || h.Days[len(h.Days)-1].Day < before {
			t.Errorf("%s: %+v, want %d pulls", path, h, want)
		}
	}
	for path, status := range map[string]int{
		"/organization/none": 404, "/repository/acme/none": 404, "/repository/acme/web/app/tag/gone": 404,
		"/repository/acme/web/app/manifest/sha256:" + fmt.Sprintf("%064d", 1): 404, "/repository/acme/web/app/tag/v1%20": 400,
	} {
		r.Manage(t, "GET", path+"/pull_statistics/history", "").WantStatus(t, status)
	}
	for _, days := range []string{"0", "3661", "x"} {
		if res := r.Manage(t, "GET", "/pull_statistics/history?days="+days, ""); res.StatusCode/100 != 4 {
			t.Errorf("%s days: %d", days, res.StatusCode)
		}
	}
	var top api.TopRepositories
	r.Manage(t, "GET", "/pull_statistics/top", "").Into(t, 200, &top)
	if got := fmt.Sprint(top.Repositories); got != "[{acme/web/app 4} {other/app 1}]" || !top.All || top.Since == nil {
		t.Errorf("%+v", top)
	}
	r.Manage(t, "GET", "/pull_statistics/top?limit=1", "").Into(t, 200, &top)
	if got := fmt.Sprint(top.Repositories); got != "[{acme/web/app 4}]" {
		t.Errorf("%+v", top)
	}
	r.Manage(t, "GET", "/pull_statistics/top?namespace=other", "").Into(t, 200, &top)
	if got := fmt.Sprint(top.Repositories); got != "[{other/app 1}]" {
		t.Errorf("%+v", top)
	}
	r.Manage(t, "GET", "/pull_statistics/top?namespace=none", "").WantStatus(t, 404)
	var tags api.TopTags
	r.Manage(t, "GET", "/repository/acme/web/app/pull_statistics/top", "").Into(t, 200, &tags)
	if got := fmt.Sprint(tags.Tags); got != "[{v1 2}]" {
		t.Errorf("a deleted tag is listed, or v1 isn't: %+v", tags)
	}
	var unpulled api.UnpulledRepositories
	r.Manage(t, "GET", "/pull_statistics/unpulled", "").Into(t, 200, &unpulled)
	if got := fmt.Sprint(unpulled.Repositories); got != "[other/never]" || unpulled.NextPage != "" {
		t.Errorf("%+v", unpulled)
	}
	r.Manage(t, "GET", "/pull_statistics/unpulled?limit=1", "").Into(t, 200, &unpulled)
	if len(unpulled.Repositories) != 0 || unpulled.NextPage == "" {
		t.Errorf("a page examines one repository: %+v", unpulled)
	}
	r.Manage(t, "DELETE", "/repository/acme/web/app", "")
	r.Manage(t, "GET", "/pull_statistics/top", "").Into(t, 200, &top)
	if got := fmt.Sprint(top.Repositories); got != "[{other/app 1}]" {
		t.Errorf("a deleted repository is listed: %+v", top)
	}
}

// TestNotPulledSince: the history is older than the time since when every pull is counted. A list of
// what wasn't pulled must not speak of the days before that time, and all lists must name it.
func TestNotPulledSince(t *testing.T) {
	t.Parallel()
	r, flush := counting(t)
	r.Put(t, "acme/app", "v1", r.Simple(t, "acme/app", 1, nil))
	flush(0)
	for ago, known := range map[string]bool{"5 days": false, "50 days": true} {
		r.Exec(t, "UPDATE pullstatisticsprocessingstate SET history_since = now() - interval '60 days', recorded_since = now() - $1::text::interval", ago)
		var want time.Time
		if err := r.DB.Pool.QueryRow(t.Context(), "SELECT recorded_since FROM pullstatisticsprocessingstate").Scan(&want); err != nil {
			t.Fatal(err)
		}
		day := want.UTC().Format(time.DateOnly)
		var unpulled api.UnpulledRepositories
		r.Manage(t, "GET", "/pull_statistics/unpulled", "").Into(t, 200, &unpulled)
		if fmt.Sprint(unpulled.Repositories) != "[acme/app]" || unpulled.Since == nil || (*unpulled.Since > day) != known || *unpulled.Since < day {
			t.Errorf("every pull of the last %s is counted: %+v", ago, unpulled)
		}
		var top api.TopRepositories
		r.Manage(t, "GET", "/pull_statistics/top", "").Into(t, 200, &top)
		var tags api.TopTags
		r.Manage(t, "GET", "/repository/acme/app/pull_statistics/top", "").Into(t, 200, &tags)
		var list statisticsList
		r.Manage(t, "GET", "/repository?statistics=true", "").Into(t, 200, &list)
		for i, got := range []*time.Time{unpulled.RecordedSince, top.RecordedSince, tags.RecordedSince, list.Repositories[0].RecentPulls.RecordedSince} {
			if got == nil || !got.Equal(want) {
				t.Errorf("list %d: every pull is counted since %v, want %v", i, got, want)
			}
		}
	}
}

// TestPullHistoryShowsWhatOneMayRead: lists have only repositories from which the client may
// pull, and the sums of a namespace are for those who have a role in all of it.
func TestPullHistoryShowsWhatOneMayRead(t *testing.T) {
	t.Parallel()
	quiet := slog.New(slog.DiscardHandler)
	r := onDatabase(t, func(o *servertest.Options, d *db.DB) {
		o.Access = &auth.Options{AnonymousPull: true}
		var err error
		if o.Management.Pulls, err = pullstats.NewReader(pullstats.Options{DB: d}); err != nil {
			t.Fatal(err)
		}
		places := statsdb.Databases{Log: d, Stats: d, Alive: catalog.LivingNamespaces}
		if o.Management.PullStats, err = pullstats.NewSyncWorker(pullstats.SyncOptions{Databases: places, Logger: quiet}); err != nil {
			t.Fatal(err)
		}
	})
	r.AddAccount(t, "root", true)
	root := r.as("root")
	for _, path := range []string{"acme/public", "acme/private", "acme/own", "acme/unused", "beta/app"} {
		root.Put(t, path, "v1", root.Simple(t, path, 1, nil))
	}
	root.Manage(t, "POST", "/repository/acme/public/changevisibility", `{"visibility":"public"}`).WantStatus(t, 200)
	r.AddAccount(t, "reader", false)
	r.Grant(t, "acme", "reader", auth.Reader)
	r.AddAccount(t, "single", false)
	r.Grant(t, "acme/own", "single", auth.Reader)
	r.AddAccount(t, "stranger", false)
	for _, sql := range []string{
		"INSERT INTO pullstatisticsprocessingstate (recorded_since) VALUES (now())",
		"INSERT INTO repositorypullhistory (repository_id, day, namespace_id, pulls) SELECT id, now()::date, top_level_namespace_id, 1 FROM repositories WHERE path <> 'acme/unused'",
		"INSERT INTO namespacepullhistory (namespace_id, day, pulls) SELECT namespace_id, day, sum(pulls) FROM repositorypullhistory GROUP BY namespace_id, day",
		"INSERT INTO pullhistory (day, pulls) SELECT day, sum(pulls) FROM repositorypullhistory GROUP BY day",
	} {
		if _, err := r.DB.Pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		who             string
		top, unpulled   string
		acme, beta, all int
		mine            int64 // pulls of what the account has a role in
	}{
		{"root", "[{acme/public 1} {acme/private 1} {acme/own 1} {beta/app 1}]", "[acme/unused]", 200, 200, 200, 4},
		{"reader", "[{acme/public 1} {acme/private 1} {acme/own 1}]", "[acme/unused]", 200, 403, 403, 3},
		{"single", "[{acme/public 1} {acme/own 1}]", "[]", 403, 403, 403, 1},
		{"stranger", "[{acme/public 1}]", "[]", 403, 403, 403, 0},
	} {
		client := r.as(c.who)
		var top api.TopRepositories
		client.Manage(t, "GET", "/pull_statistics/top", "").Into(t, 200, &top)
		if got := fmt.Sprint(top.Repositories); got != c.top {
			t.Errorf("%s sees %s, want %s", c.who, got, c.top)
		}
		var unpulled api.UnpulledRepositories
		client.Manage(t, "GET", "/pull_statistics/unpulled", "").Into(t, 200, &unpulled)
		if got := fmt.Sprint(unpulled.Repositories); got != c.unpulled {
			t.Errorf("%s sees %s unpulled, want %s", c.who, got, c.unpulled)
		}
		client.Manage(t, "GET", "/organization/acme/pull_statistics/history", "").WantStatus(t, c.acme)
		client.Manage(t, "GET", "/organization/beta/pull_statistics/history", "").WantStatus(t, c.beta)
		client.Manage(t, "GET", "/pull_statistics/history", "").WantStatus(t, c.all)
		var mine api.PullHistory
		client.Manage(t, "GET", "/user/pull_statistics/history", "").Into(t, 200, &mine)
		if mine.Total != c.mine {
			t.Errorf("%s has %d pulls, want %d", c.who, mine.Total, c.mine)
		}
	}
	// The sum of a namespace has repositories that a limited credential may not read.
	var robot api.RobotView
	root.Manage(t, "PUT", "/organization/acme/robots/narrow", `{"repositories":["acme/own"]}`).Into(t, 201, &robot)
	root.Manage(t, "PUT", "/organization/acme/permissions/user/acme+narrow", `{"role":"read"}`).WantStatus(t, 200)
	narrow := r.with(servertest.Basic("acme+narrow", robot.Token))
	narrow.Manage(t, "GET", "/user/pull_statistics/history", "").Refused(t, 403, "insufficient_scope", "needs the access login")
	r.Manage(t, "GET", "/user/pull_statistics/history", "").WantStatus(t, 401)
	r.as("stranger").Manage(t, "GET", "/pull_statistics/top?namespace=beta", "").WantStatus(t, 404)
	r.as("stranger").Manage(t, "GET", "/repository/acme/private/pull_statistics/history", "").WantStatus(t, 403)
	r.as("stranger").Manage(t, "GET", "/repository/acme/public/pull_statistics/history", "").WantStatus(t, 200)
}
