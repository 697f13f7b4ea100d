package main

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/cmd/purser/internal/servetest"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/pullstats"
)

// yearOfPulls runs a registry whose pull statistics go back a year, and opens a pool for
// each of its databases. `apart` puts the statistics into a database of their own.
func yearOfPulls(t *testing.T, apart bool) (s *shop, main, stats *db.DB) {
	t.Helper()
	mainDSN := dbtest.EmptyDSN(t)
	statsDSN := mainDSN
	if apart {
		statsDSN = dbtest.EmptyDSN(t)
	}
	s = &shop{t, start(t, servetest.Config(t, "PURSER_DATABASE_MAIN="+mainDSN, "PURSER_DATABASE_STATS="+statsDSN)).Registry}
	main, stats = dbtest.Open(t, mainDSN), dbtest.Open(t, statsDSN)
	s.run("pulls", "flush") // so that there is a state
	change(t, stats, "UPDATE pullstatisticsprocessingstate SET recorded_since = now() - interval '1 year', checks_since = now() - interval '1 year'")
	return s, main, stats
}

func change(t *testing.T, d *db.DB, sql string, args ...any) {
	t.Helper()
	if _, err := d.Pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// repositoryID returns the id of the repository with this path.
func repositoryID(t *testing.T, d *db.DB, path string) (id int64) {
	t.Helper()
	if err := d.Pool.QueryRow(t.Context(), "SELECT id FROM repositories WHERE path = $1", path).Scan(&id); err != nil {
		t.Fatal(err)
	}
	return id
}

func TestTagListByPulls(t *testing.T) {
	t.Parallel()
	s, main, stats := yearOfPulls(t, false)
	for _, tag := range []string{"busy", "idle", "never"} {
		s.push("acme/app", tag, tag)
	}
	change(t, main, "UPDATE tags SET created_at = now() - interval '200 days', updated_at = NULL")
	change(t, stats, `INSERT INTO tagpullstatistics (repository_id, tag_name, tag_pull_count, last_tag_pull_date)
		VALUES ($1, 'busy', 1234567, now()), ($1, 'idle', 1700, now() - interval '100 days')`, repositoryID(t, main, "acme/app"))
	table := s.run("tag", "list", "acme/app", "--sort", "name")
	if !regexp.MustCompile(`(?s)LAST PULL +PULLS\nbusy .* 1M\+\nidle .* 1\.7K\nnever .* -\n$`).MatchString(table) {
		t.Errorf("as a table:\n%s", table)
	}
	for age, want := range map[string][]string{"90d": {"idle", "never"}, "12w": {"idle", "never"}, "150d": {"never"}, "300d": nil} {
		if got := first(s.run("tag", "list", "acme/app", "--sort", "name", "--not-pulled-for", age)); !slices.Equal(got, want) {
			t.Errorf("not pulled for %s: %q, want %q", age, got, want)
		}
	}
	var tags []struct {
		PullCount *int64 `json:"pull_count"`
	}
	text := s.run("tag", "list", "acme/app", "--not-pulled-for", "90d", "--prefix", "idle", "-o", "json")
	if err := json.Unmarshal([]byte(text), &tags); err != nil || len(tags) != 1 || *tags[0].PullCount != 1700 {
		t.Errorf("as JSON: %s, %v", text, err)
	}
	s.refused("pulls are counted since ", "tag", "list", "acme/app", "--not-pulled-for", "2y")
	s.refused("it is empty", "tag", "list", "acme/app", "--not-pulled-for", "")
	s.refused("no unit", "tag", "list", "acme/app", "--not-pulled-for", "90")
}

// The sweeper deletes the pull statistics of tags and manifests that the catalog hasn't had
// for long, whether or not the statistics are in a database of their own.
func TestSweepByCatalog(t *testing.T) {
	t.Parallel()
	for name, apart := range map[string]bool{"one database": false, "two databases": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, main, stats := yearOfPulls(t, apart)
			d := s.push("acme/app", "v1", "1")
			id := repositoryID(t, main, "acme/app")
			change(t, stats, "INSERT INTO tagpullstatistics (repository_id, tag_name, tag_pull_count, gone_since) VALUES ($1, 'v1', 5, now() - interval '1 year'), ($1, 'v2', 5, now() - interval '1 year'), ($1, 'v3', 5, NULL)", id)
			other := strings.Repeat("0", 64)
			change(t, stats, "INSERT INTO manifestpullstatistics (repository_id, manifest_digest, total_pull_count, gone_since) VALUES ($1, $2, 5, now() - interval '1 year'), ($1, $3, 5, now() - interval '1 year')", id, d, "sha256:"+other)
			c := catalog.New(catalog.Options{DB: main, CacheOff: true})
			w, err := pullstats.NewSweeper(pullstats.SweeperOptions{
				Stats: stats, Tags: c.PresentTags, Manifests: c.PresentManifests, Interval: time.Millisecond, Logger: quiet,
			})
			if err != nil {
				t.Fatal(err)
			}
			go w.Run(t.Context()) //nolint:errcheck // it ends with the test
			left := func() (list string) {
				err := stats.Pool.QueryRow(t.Context(), `
					SELECT concat((SELECT string_agg(tag_name || ' ' || (gone_since IS NULL), ', ' ORDER BY tag_name) FROM tagpullstatistics), '; ',
						(SELECT string_agg(manifest_digest || ' ' || (gone_since IS NULL), ', ') FROM manifestpullstatistics))`).Scan(&list)
				if err != nil {
					t.Fatal(err)
				}
				return list
			}
			want := "v1 true, v3 false; " + d + " true"
			servetest.WaitFor(t, "only what is there has statistics: "+left(), func() bool { return left() == want })
		})
	}
}
