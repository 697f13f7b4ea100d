package ui_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/builtinpg/pgtest"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/pullstats"
	"github.com/purser-registry/purser/internal/pullstats/statsdb"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// counted starts a registry that counts pulls, in a database of their own.
func counted(t *testing.T, change ...func(*servertest.Options)) (s site, stats *db.DB) {
	t.Helper()
	dsn := dbtest.DSN(t)
	main := dbtest.Open(t, dsn)
	stats = dbtest.Open(t, dbtest.DSN(t))
	change = append(change, func(o *servertest.Options) {
		var err error
		if o.Management.Pulls, err = pullstats.NewReader(pullstats.Options{DB: stats}); err != nil {
			t.Fatal(err)
		}
		places := statsdb.Databases{Log: main, Stats: stats, Alive: catalog.LivingNamespaces}
		if o.Management.PullStats, err = pullstats.NewSyncWorker(pullstats.SyncOptions{Databases: places, Logger: slog.New(slog.DiscardHandler)}); err != nil {
			t.Fatal(err)
		}
	})
	s = site{servertest.NewReplica(t, dsn, pgtest.TempDir(t), change...)}
	s.Listen(t)
	return s, stats
}

// pulls writes that a repository was pulled: today three times, and 1,720 times four days ago.
func (s site) pulls(t *testing.T, stats *db.DB, repository string, d oci.Digest) {
	t.Helper()
	var id, namespace int64
	if err := s.DB.Pool.QueryRow(t.Context(), "SELECT id, top_level_namespace_id FROM repositories WHERE path = $1", repository).Scan(&id, &namespace); err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{
		"INSERT INTO pullstatisticsprocessingstate (recorded_since, history_since) VALUES (now() - interval '50 days', now() - interval '50 days') ON CONFLICT DO NOTHING",
		fmt.Sprintf("INSERT INTO repositorypullhistory (repository_id, day, namespace_id, pulls) SELECT %d, (now() AT TIME ZONE 'UTC')::date - ago, %d, n FROM (VALUES (0, 3), (4, 1720), (45, 9)) AS d (ago, n)", id, namespace),
		fmt.Sprintf("INSERT INTO namespacepullhistory (namespace_id, day, pulls) SELECT namespace_id, day, pulls FROM repositorypullhistory WHERE repository_id = %d", id),
		"INSERT INTO pullhistory (day, pulls) SELECT day, sum(pulls) FROM repositorypullhistory GROUP BY day ON CONFLICT (day) DO UPDATE SET pulls = EXCLUDED.pulls",
		fmt.Sprintf("INSERT INTO tagpullstatistics (repository_id, tag_name, tag_pull_count, last_tag_pull_date, day, day_pulls) VALUES (%d, 'v1', 3, now(), (now() AT TIME ZONE 'UTC')::date, 3)", id),
		fmt.Sprintf("INSERT INTO manifestpullstatistics (repository_id, manifest_digest, total_pull_count, last_pull_date, day, day_pulls) VALUES (%d, '%s', 1723, now() - interval '3 hours', (now() AT TIME ZONE 'UTC')::date - 4, 1720)", id, d),
	} {
		if _, err := stats.Pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
}

// TestPullsInLists: the lists of repositories show sizes and pulls, and lead to what was pulled most
// and what nobody pulled. Pages of a repository, a tag and an image, and the overview, show pulls
// over time.
func TestPullsInLists(t *testing.T) {
	t.Parallel()
	s, stats := counted(t)
	web := s.Put(t, "acme/web", "v1", s.Simple(t, "acme/web", 1, nil))
	s.Put(t, "acme/idle", "v1", s.Simple(t, "acme/idle", 2, nil))
	s.Put(t, "other/idle", "v1", s.Simple(t, "other/idle", 3, nil))
	s.pulls(t, stats, "acme/web", web)
	row := func(content, repository string) string {
		_, rest, _ := strings.Cut(content, `"/ui/repositories/`+repository+`"`)
		row, _, found := strings.Cut(rest, "</tr>")
		if !found {
			t.Errorf("no row of %s in %s", repository, content)
		}
		return row
	}
	const spark = "Pulls on each of the last 30 days: 1,723 in all, at most 1,720 on a day, "
	for _, path := range []string{"/ui/repositories", "/ui/repositories?q=acme", "/ui/repositories?namespace=acme&sort=-created", "/ui/namespaces/acme"} {
		content := s.open(t, path, "Pulls in 30 days", "Last pull", "Size")
		has(t, path, row(content, "acme/web"), `<svg class="spark"`, spark, `<span title="1,723 pulls in 30 days">1.7K</span>`, "3 h ago", "1 blob")
		idle := row(content, "acme/idle")
		has(t, path, idle, `<span title="0 pulls in 30 days">0</span>`, "never")
		lacks(t, idle, "<svg")
	}
	top := s.open(t, "/ui/repositories?show=top&days=7", "Pulls in 7 days", "Pulls since", `aria-current="page">Most pulled`)
	has(t, "top", row(top, "acme/web"), ">1,723<", spark)
	lacks(t, top, "acme/idle", "other/idle")
	s.open(t, "/ui/repositories?show=top&days=7&namespace=other", "Nobody pulled in this time")
	never := s.open(t, "/ui/repositories?show=unpulled", "Nobody pulled from these since", "acme/idle", "other/idle", "A HEAD request is no pull")
	lacks(t, never, `"/ui/repositories/acme/web"`)
	lacks(t, s.open(t, "/ui/repositories?show=unpulled&namespace=acme", "acme/idle"), "other/idle")
	s.open(t, "/ui/namespaces/acme", "show=top", "1,723 pulls in 30 days")
	s.open(t, "/ui/repositories/acme/web/-/tags/v1", "<h2>Pulls</h2>", "3 pulls in 30 days", `<rect class="bar1"`)
	s.open(t, manifestPage("acme/web", web), "<h2>Pulls</h2>", "1,720 pulls in 30 days")
	s.open(t, "/ui/", "1,723 pulls in 30 days", "3 pushes in 30 days")

	stats.Pool.Close() // the server of the statistics is away
	for _, path := range []string{"/ui/repositories", "/ui/namespaces/acme"} {
		lacks(t, s.open(t, path, "acme/web", "1 blob"), "Last pull", "<svg class=\"spark\"")
	}
	lacks(t, s.open(t, "/ui/", "3 pushes in 30 days"), "pulls in 30 days")
	lacks(t, s.open(t, "/ui/repositories/acme/web/-/tags/v1"), "<h2>Pulls</h2>")
	lacks(t, s.open(t, manifestPage("acme/web", web)), "<h2>Pulls</h2>")
	s.open(t, "/ui/repositories?show=top", "can&#39;t be read now", "Show all repositories")
	s.open(t, "/ui/repositories?show=unpulled", "can&#39;t be read now")
}

// TestListsWithoutPulls: where pulls aren't counted, lists have no columns of pulls and no ways to
// lists by pulls.
func TestListsWithoutPulls(t *testing.T) {
	t.Parallel()
	s := site{servertest.Setup(t)}
	s.Put(t, "acme/web", "v1", s.Simple(t, "acme/web", 1, nil))
	for _, path := range []string{"/ui/repositories", "/ui/namespaces/acme"} {
		lacks(t, s.open(t, path, "acme/web", "1 blob", "Last push"), "Last pull", "Pulls", "show=top")
	}
	s.open(t, "/ui/repositories?show=top", "Pulls are not counted here")
	s.open(t, "/ui/repositories?show=unpulled&days=30", "Pulls are not counted here")
}

// TestPullsByRole: lists by pulls show only what the client may read.
func TestPullsByRole(t *testing.T) {
	t.Parallel()
	s, stats := counted(t, func(o *servertest.Options) { o.Access = &auth.Options{} })
	s.AddAccount(t, "root", true)
	root := s.as("root")
	for _, path := range []string{"acme/app", "acme/idle", "other/app", "other/idle"} {
		d := root.Put(t, path, "v1", root.Simple(t, path, 1, nil))
		if strings.HasSuffix(path, "/app") {
			s.pulls(t, stats, path, d)
		}
	}
	s.AddAccount(t, "ann", false)
	s.Grant(t, "acme", "ann", auth.Reader)
	ann := s.as("ann")
	lacks(t, ann.open(t, "/ui/repositories?show=top", "acme/app", "1.7K"), "other/")
	lacks(t, ann.open(t, "/ui/repositories?show=unpulled", "acme/idle"), "other/")
	root.open(t, "/ui/repositories?show=top", "acme/app", "other/app")
}
