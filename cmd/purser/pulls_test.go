package main

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/cmd/purser/internal/serve"
	"github.com/purser-registry/purser/cmd/purser/internal/servetest"
	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/policy"
	"github.com/purser-registry/purser/internal/pullstats"
	"github.com/purser-registry/purser/internal/pullstats/redistest"
	"github.com/purser-registry/purser/internal/pullstats/statsdb"
)

// putIndex pushes an image index that lists the manifests `children`, and returns its
// digest.
func putIndex(t *testing.T, s *servetest.Server, repository, tag, name string, children ...oci.Digest) oci.Digest {
	t.Helper()
	list := []map[string]any{}
	for _, d := range children {
		list = append(list, map[string]any{"mediaType": "application/vnd.oci.image.index.v1+json", "digest": d, "size": sizeOf(t, s, repository, d)})
	}
	body, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json",
		"manifests": list, "annotations": map[string]string{"name": name}})
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), "PUT", s.Registry+"/v2/"+repository+"/manifests/"+tag, strings.NewReader(string(body)))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil || resp.StatusCode != 201 {
		t.Fatalf("pushing %s: %v, %v", tag, resp, err)
	}
	resp.Body.Close() //nolint:errcheck // nothing is in it
	return oci.Compute(oci.SHA256, body)
}

// sizeOf returns a manifest's size from a HEAD request, which doesn't count as a pull.
func sizeOf(t *testing.T, s *servetest.Server, repository string, d oci.Digest) int64 {
	t.Helper()
	resp, err := http.Head(s.Registry + "/v2/" + repository + "/manifests/" + d.String())
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close() //nolint:errcheck // nothing is in it
	return resp.ContentLength
}

// judge makes an auto-pruner on the databases `main` and `stats` of a running server. It
// reads the pull statistics as the server's own auto-pruner does, but without Redis.
func judge(t *testing.T, main, stats *db.DB) *autoprune.Pruner {
	t.Helper()
	w, err := pullstats.NewSyncWorker(pullstats.SyncOptions{Databases: statsdb.Databases{Log: main, Stats: stats, Alive: catalog.LivingNamespaces}})
	if err != nil {
		t.Fatal(err)
	}
	o := autoprune.Options{DB: main, Catalog: catalog.New(catalog.Options{DB: main, CacheOff: true}), Log: slog.New(slog.DiscardHandler)}
	serve.PruneByPulls(&o, w, nil)
	p, err := autoprune.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// going returns the tags that a last_pulled policy of 30 days would delete, and the preview
// that lists them.
func going(t *testing.T, pruner *autoprune.Pruner) (tags []string, p *autoprune.Preview) {
	t.Helper()
	return goingBy(t, pruner, `{"method": "last_pulled", "olderThan": "30d"}`)
}

// goingBy is like going, with another policy.
func goingBy(t *testing.T, pruner *autoprune.Pruner, text string) (tags []string, p *autoprune.Preview) {
	t.Helper()
	policy, err := policy.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if p, err = pruner.Preview(t.Context(), policies.Target{Namespace: "acme"}, autoprune.PreviewOptions{Policy: &policy}); err != nil {
		t.Fatal(err)
	}
	for _, g := range p.Going {
		tags = append(tags, g.Tag)
	}
	slices.Sort(tags)
	return tags, p
}

// The test pulls tags, and checks which tags a last_pulled policy would delete. A tag stays
// if a client pulled it by name, by its manifest's digest, or by the digest of a manifest
// that its index lists, or if a client sent a HEAD request for it. It stays even if the
// pull isn't counted yet. No tag is deleted while the statistics are younger than the
// policy's age, or unreliable.
func TestPruningByPulls(t *testing.T) {
	t.Parallel()
	for _, apart := range []bool{false, true} {
		t.Run(fmt.Sprintf("apart=%v", apart), func(t *testing.T) {
			t.Parallel()
			main := dbtest.EmptyDSN(t)
			stats := main
			if apart {
				stats = dbtest.EmptyDSN(t)
			}
			// With an interval of 1 h, pulls are counted only when the test requests it.
			// The request leaves a second for pulls that aren't in the audit log yet.
			s := start(t, servetest.Config(t, "PURSER_DATABASE_MAIN="+main, "PURSER_DATABASE_STATS="+stats, "PURSER_PULL_STATISTICS_INTERVAL=1h"))
			d, sd := dbtest.Open(t, main), dbtest.Open(t, stats)
			pruner := judge(t, d, sd)
			putIndex(t, s, "acme/app", "by-tag", "1")
			byDigest := putIndex(t, s, "acme/app", "by-digest", "2")
			child := putIndex(t, s, "acme/app", "child", "3")
			above := putIndex(t, s, "acme/app", "above", "4", child)
			putIndex(t, s, "acme/app", "far-above", "5", above)
			putIndex(t, s, "acme/app", "unused", "6")
			putIndex(t, s, "acme/app", "late", "7")
			putIndex(t, s, "acme/app", "asked", "8")
			exec := func(d *db.DB, sql string) {
				t.Helper()
				if _, err := d.Pool.Exec(t.Context(), sql); err != nil {
					t.Fatal(err)
				}
			}
			exec(d, "UPDATE tags SET created_at = now() - interval '100 days', updated_at = NULL")
			servetest.WaitFor(t, "the statistics begin", func() bool {
				var n int
				return sd.Pool.QueryRow(t.Context(), "SELECT count(*) FROM pullstatisticsprocessingstate").Scan(&n) == nil && n == 1
			})
			for _, ref := range []string{"by-tag", byDigest.String(), child.String()} {
				if code, body := get(t, s.Registry+"/v2/acme/app/manifests/"+ref); code != 200 {
					t.Fatalf("pulling: %d %s", code, body)
				}
			}
			if res, err := http.Head(s.Registry + "/v2/acme/app/manifests/asked"); err != nil || res.StatusCode != 200 {
				t.Fatalf("asking: %v %v", res, err)
			}
			flush(t, s, 3)
			servetest.WaitFor(t, "the HEAD is remembered", func() bool {
				var n int
				return sd.Pool.QueryRow(t.Context(), "SELECT count(last_check_date) FROM tagpullstatistics WHERE tag_pull_count = 0").Scan(&n) == nil && n == 1
			})
			if tags, p := going(t, pruner); len(tags) > 0 || !strings.Contains(fmt.Sprint(p.Staying), "pull statistics began at") {
				t.Errorf("%v go though statistics are young: %v", tags, p.Staying)
			}
			exec(sd, "UPDATE pullstatisticsprocessingstate SET recorded_since = now() - interval '60 days'")
			if tags, p := going(t, pruner); len(tags) > 0 {
				t.Errorf("%v go though HEAD requests weren't remembered for as long: %v", tags, p.Staying)
			}
			exec(sd, "UPDATE pullstatisticsprocessingstate SET checks_since = now() - interval '60 days'")
			if tags, p := going(t, pruner); !slices.Equal(tags, []string{"late", "unused"}) {
				t.Errorf("%v go, want late and unused: %+v", tags, p)
			}
			// by-tag was used last. So it alone stays within the bytes of its manifest.
			exec(sd, "UPDATE tagpullstatistics SET last_tag_pull_date = now() + interval '1 minute' WHERE tag_name = 'by-tag'")
			var size int64
			if err := d.Pool.QueryRow(t.Context(), "SELECT octet_length(payload) FROM manifests m JOIN tags t ON t.manifest_id = m.id WHERE t.name = 'by-tag'").Scan(&size); err != nil {
				t.Fatal(err)
			}
			if tags, p := goingBy(t, pruner, fmt.Sprintf(`{"method": "max_bytes", "maxBytes": "%d"}`, size)); len(tags) != 7 || slices.Contains(tags, "by-tag") ||
				!strings.Contains(p.Policies[0].Notice, "doesn't count 2 tags") {
				t.Errorf("%v go by bytes, want all but by-tag: %+v", tags, p)
			}
			code, stdout, stderr := purser(t, []string{"PURSER_SERVER=" + s.Registry}, "prune", "preview", "acme", "--method", "last_pulled", "--older-than", "30d")
			if code != 0 || !strings.Contains(stdout, "\n2 of 8 tags") {
				t.Errorf("the server's own preview: %d %s %s", code, stdout, stderr)
			}
			if code, _ := get(t, s.Registry+"/v2/acme/app/manifests/late"); code != 200 {
				t.Fatal("pulling late")
			}
			servetest.WaitFor(t, "the pull is in the log", func() bool {
				var n int
				return d.Pool.QueryRow(t.Context(), "SELECT count(*) FROM auditlog WHERE tag = 'late' AND kind = 'pull_repo'").Scan(&n) == nil && n == 1
			})
			if tags, p := going(t, pruner); !slices.Equal(tags, []string{"unused"}) {
				t.Errorf("%v go, want unused: the pull of late isn't counted yet, and seen; %+v", tags, p)
			}
			exec(sd, "UPDATE pullstatisticsprocessingstate SET last_processed_xid = '1099511627776'")
			if tags, p := going(t, pruner); len(tags) > 0 {
				t.Errorf("%v go though nobody can tell what was pulled: %+v", tags, p)
			}
			code, stdout, stderr = purser(t, []string{"PURSER_SERVER=" + s.Registry}, "pulls", "status")
			if code != 1 || !strings.Contains(stderr, "purser pulls reset") || !strings.Contains(stdout, "transaction 1099511627776") {
				t.Errorf("status: %d %s %s", code, stdout, stderr)
			}
			if code, stdout, stderr := purser(t, []string{"PURSER_SERVER=" + s.Registry}, "pulls", "reset", "--nothing-lost", "--yes"); code != 0 || stdout != "Pulls to be counted: 1.\n" {
				t.Errorf("reset: %d %s %s", code, stdout, stderr)
			}
			flush(t, s, 4)
			if tags, p := going(t, pruner); !slices.Equal(tags, []string{"unused"}) {
				t.Errorf("%v go in the end: %+v", tags, p)
			}
			if code, body := get(t, s.Debug+"/metrics"); code != 200 || !strings.Contains(body, `purser_pull_statistics_entries_total{result="counted"} 4`) {
				t.Error("the metrics don't have the pulls")
			}
		})
	}
}

// flush asks the server to count pulls, until `want` pulls are counted in total.
func flush(t *testing.T, s *servetest.Server, want int64) {
	t.Helper()
	servetest.WaitFor(t, fmt.Sprint(want, " pulls are counted"), func() bool {
		code, stdout, stderr := purser(t, []string{"PURSER_SERVER=" + s.Registry}, "pulls", "flush", "-o", "json")
		var v api.PullState
		if err := json.Unmarshal([]byte(stdout), &v); err != nil || code != 0 {
			t.Fatalf("flush: %d %s %s %v", code, stdout, stderr, err)
		}
		return v.Counted == want
	})
}

// With audit.pulls switched off, a server counts no pulls. It marks the statistics as
// incomplete, and the API answers that pulls aren't counted.
func TestPullsOff(t *testing.T) {
	t.Parallel()
	dsn := dbtest.DSN(t)
	s := start(t, servetest.Config(t, "PURSER_DATABASE_MAIN="+dsn, "PURSER_AUDIT_PULLS=false"))
	d := dbtest.Open(t, dsn)
	servetest.WaitFor(t, "statistics are said to be incomplete", func() bool {
		var since time.Time
		return d.Pool.QueryRow(t.Context(), "SELECT recorded_since FROM pullstatisticsprocessingstate").Scan(&since) == nil && time.Until(since) > time.Minute
	})
	code, _, stderr := purser(t, []string{"PURSER_SERVER=" + s.Registry}, "pulls", "status")
	if code != 3 || !strings.Contains(stderr, "pull_statistics.enabled and pull_statistics.redis are false") {
		t.Errorf("status: %d %s", code, stderr)
	}
}

// With Redis, a pull keeps its tag from being deleted while the pull is only in Redis, and
// after it was flushed to the statistics. While Redis can't be reached, no tag is deleted,
// since last-used times aren't known.
func TestPruningByPullsInRedis(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	main := dbtest.EmptyDSN(t)
	s := start(t, servetest.Config(t, "PURSER_DATABASE_MAIN="+main, "PURSER_REDIS_URL="+redis.URL(), "FEATURE_REDIS_PULL_TRACKING=true", "PURSER_AUDIT_PULLS=false"))
	d := dbtest.Open(t, main)
	for i, tag := range []string{"unused", "pulled", "same"} {
		putIndex(t, s, "acme/app", tag, fmt.Sprint(min(i, 1))) // the tags pulled and same point to one manifest
	}
	servetest.WaitFor(t, "the statistics begin and Redis is flushed", func() bool {
		var n int
		return d.Pool.QueryRow(t.Context(), `SELECT count(*) FROM pullstatisticsprocessingstate, redisprocessingstate r
			WHERE r.last_processed_timestamp > 'epoch'`).Scan(&n) == nil && n == 1
	})
	for _, sql := range []string{
		"UPDATE tags SET created_at = now() - interval '100 days', updated_at = NULL",
		"UPDATE pullstatisticsprocessingstate SET recorded_since = now() - interval '60 days', checks_since = now() - interval '60 days'",
	} {
		if _, err := d.Pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	preview := func() string {
		t.Helper()
		code, stdout, stderr := purser(t, []string{"PURSER_SERVER=" + s.Registry}, "prune", "preview", "acme", "--method", "last_pulled", "--older-than", "30d", "-o", "json")
		if code != 0 {
			t.Fatalf("preview: %d %s %s", code, stdout, stderr)
		}
		var p struct{ Going []struct{ Tag string } }
		if err := json.Unmarshal([]byte(stdout), &p); err != nil {
			t.Fatal(err)
		}
		var tags []string
		for _, g := range p.Going {
			tags = append(tags, g.Tag)
		}
		slices.Sort(tags)
		return strings.Join(tags, " ")
	}
	if got := preview(); got != "pulled same unused" {
		t.Fatalf("%q go, want all", got)
	}
	if code, _ := get(t, s.Registry+"/v2/acme/app/manifests/pulled"); code != 200 {
		t.Fatal("pulling")
	}
	servetest.WaitFor(t, "the pull is in Redis", func() bool { return preview() == "unused" })
	if tags, p := going(t, judge(t, d, d)); len(tags) > 0 || !strings.Contains(fmt.Sprint(p.Staying), "set redis.url here too") {
		t.Errorf("%v go by a process that can't read Redis: %+v", tags, p.Staying)
	}
	var counted int
	if err := d.Pool.QueryRow(t.Context(), "SELECT count(*) FROM tagpullstatistics").Scan(&counted); err != nil || counted != 0 {
		t.Fatalf("%d tags are counted, %v; this is about what isn't", counted, err)
	}
	if code, stdout, stderr := purser(t, []string{"PURSER_SERVER=" + s.Registry}, "pulls", "flush"); code != 0 || !strings.Contains(stdout, "new pulls counted by  redis") {
		t.Errorf("flush: %d %s %s", code, stdout, stderr)
	}
	if got := preview(); got != "unused" {
		t.Errorf("%q go after the flush, want unused", got)
	}
	if code, body := get(t, s.Registry+"/api/v1/repository/acme/app/tag/pulled/pull_statistics"); code != 200 || !strings.Contains(body, `"tag_pull_count":1,`) {
		t.Errorf("%d %s", code, body)
	}
	redis.Kill()
	if res, err := http.Head(s.Registry + "/v2/acme/app/manifests/unused"); err != nil || res.StatusCode != 200 {
		t.Fatalf("asking: %v %v", res, err)
	}
	if got := preview(); got != "" {
		t.Errorf("%q go though Redis is away", got)
	}
	if code, _, stderr := purser(t, []string{"PURSER_SERVER=" + s.Registry}, "pulls", "status"); code != 1 || !strings.Contains(stderr, "reaching Redis at") {
		t.Errorf("status: %d %s", code, stderr)
	}
	if code, _ := get(t, s.Registry+"/v2/acme/app/manifests/pulled"); code != 200 {
		t.Error("a pull fails because Redis is away")
	}
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
	// The test pulled one of these tags, and sent a HEAD request for the other, while Redis
	// was unreachable, and the audit log has no pulls in this test. So the server could record
	// the pull and the HEAD only as last-used times.
	var marked int
	if err := d.Pool.QueryRow(t.Context(), "SELECT count(last_check_date) FROM tagpullstatistics WHERE tag_name IN ('pulled', 'unused')").Scan(&marked); err != nil || marked != 2 {
		t.Errorf("%d tags are marked as used, %v; want 2", marked, err)
	}
}
