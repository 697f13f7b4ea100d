package management_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/builtinpg/pgtest"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/pullstats"
	"github.com/purser-registry/purser/internal/pullstats/statsdb"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// TestAPITagsNotPulledFor: a client lists the tags that weren't used for some time, in every
// order and with several page sizes. The API must list exactly these tags, in the order that
// the client asked for.
func TestAPITagsNotPulledFor(t *testing.T) {
	t.Parallel()
	r, flush := counting(t)
	names := []string{"a-never", "b-long-ago", "c-lately", "d-checked", "e-checked-long-ago", "f-young", "g-never"}
	for i, name := range names {
		r.Put(t, "acme/app", name, r.Simple(t, "acme/app", i, nil))
	}
	r.Put(t, "acme/web", "c-lately", r.Simple(t, "acme/web", 1, nil))
	flush(0)
	r.Exec(t, "UPDATE pullstatisticsprocessingstate SET recorded_since = now() - interval '200 days', checks_since = now() - interval '150 days'")
	r.Exec(t, `UPDATE tags SET updated_at = NULL,
		created_at = now() - interval '100 days' + ascii(name) * interval '1 minute' - CASE WHEN name LIKE 'f%' THEN interval '0' ELSE interval '10 days' END`)
	r.Exec(t, `
		INSERT INTO tagpullstatistics (repository_id, tag_name, tag_pull_count, last_tag_pull_date, last_check_date)
		SELECT id, tag.name, tag.n, now() - tag.pulled::interval, now() - tag.checked::interval FROM repositories, (VALUES
			('b-long-ago', 1234, '120 days', NULL), ('c-lately', 2, '3 days', '120 days'), ('d-checked', 1, '120 days', '3 days'), ('e-checked-long-ago', 0, NULL, '120 days')
		) AS tag (name, n, pulled, checked) WHERE path = 'acme/app'`)
	for query, want := range map[string]string{
		"":                                    "g-never e-checked-long-ago b-long-ago a-never",
		"sort=pushed":                         "a-never b-long-ago e-checked-long-ago g-never",
		"sort=name":                           "a-never b-long-ago e-checked-long-ago g-never",
		"sort=-name&prefix=b":                 "b-long-ago",
		"sort=name&contains=never":            "a-never g-never",
		"sort=-size&contains=long-ago":        "e-checked-long-ago b-long-ago",
		"sort=-last_pulled":                   "b-long-ago g-never e-checked-long-ago a-never",
		"specificTag=c-lately":                "",
		"specificTag=a-never&sort=name":       "a-never",
		"filter_tag_name=eq:a-never":          "a-never",
		"sort=-pushed&not_pulled_for=98d":     "f-young g-never e-checked-long-ago b-long-ago a-never",
		"sort=name&not_pulled_for=2d":         "a-never b-long-ago c-lately d-checked e-checked-long-ago f-young g-never",
		"sort=pushed&not_pulled_for=2d":       "a-never b-long-ago c-lately d-checked e-checked-long-ago g-never f-young",
		"sort=-pushed&not_pulled_for=105d":    "g-never e-checked-long-ago b-long-ago a-never",
		"sort=-pushed&not_pulled_for=130d":    "",
		"sort=last_pulled&not_pulled_for=95d": "a-never e-checked-long-ago f-young g-never b-long-ago",
	} {
		if !strings.Contains(query, "not_pulled_for") {
			query += "&not_pulled_for=101d"
		}
		for _, limit := range []int{1, 2, 50} {
			var got []string
			for next := ""; ; {
				var list tagList
				r.Manage(t, "GET", fmt.Sprintf("/repository/acme/app/tag/?%s&limit=%d&next_page=%s", query, limit, next), "").Into(t, 200, &list)
				if len(list.Tags) > limit {
					t.Fatalf("%s: a page of %d", query, len(list.Tags))
				}
				if list.names() != "" {
					got = append(got, list.names())
				}
				if next = list.NextPage; next == "" {
					break
				}
			}
			if text := strings.Join(got, " "); text != want {
				t.Errorf("%s, limit %d: %q, want %q", query, limit, text, want)
			}
		}
	}
	var list struct {
		Tags []struct {
			Count   *int64  `json:"pull_count"`
			Display *string `json:"pull_count_display"`
		}
	}
	r.Manage(t, "GET", "/repository/acme/app/tag/?sort=name&limit=2", "").Into(t, 200, &list)
	if never, long := list.Tags[0], list.Tags[1]; never.Count != nil || never.Display != nil || *long.Count != 1234 || *long.Display != "1.2K" {
		t.Errorf("counts for people: %+v", list.Tags)
	}
}

// TestAPITagsNotPulledForRefused: a client lists unused tags with an invalid age, or while the
// pull statistics aren't complete. The API must answer with an error that says why.
func TestAPITagsNotPulledForRefused(t *testing.T) {
	t.Parallel()
	r, flush := counting(t)
	r.Put(t, "acme/app", "v1", r.Simple(t, "acme/app", 1, nil))
	const tags = "/repository/acme/app/tag/?not_pulled_for="
	for query, text := range map[string]string{
		"":               "not_pulled_for: it is empty",
		"0d":             "not_pulled_for: .*zero",
		"-1d":            "not_pulled_for: .*negative",
		"90":             "not_pulled_for: .*no unit",
		"90q":            "not_pulled_for: .*unknown unit",
		"200y":           "not_pulled_for: .*longer than 100y",
		"90d%C3%A9":      "not_pulled_for: .*ASCII",
		"90d&page=2":     "page: .*next_page alone",
		"90d&page=9999":  "page: ",
		"90d&sort=older": "sort",
	} {
		r.Manage(t, "GET", tags+query, "").Refused(t, 400, "invalid_request", text)
	}
	flush(0)
	r.Exec(t, "UPDATE pullstatisticsprocessingstate SET checks_since = now() - interval '9 days'")
	refused := func(age, since, text string) {
		t.Helper()
		r.Exec(t, "UPDATE pullstatisticsprocessingstate SET recorded_since = $1::text::timestamptz", since)
		r.Manage(t, "GET", tags+age, "").Refused(t, 409, "invalid_request", text)
	}
	yesterday := time.Now().Add(-24 * time.Hour).UTC().Truncate(time.Second)
	refused("90d", yesterday.Format(time.RFC3339), "which tags weren't pulled for 90d can't be told: pulls are counted since "+
		yesterday.Format(time.RFC3339)+", so they can be from "+yesterday.Add(90*24*time.Hour).Format(time.RFC3339)+" on")
	refused("25h", yesterday.Format(time.RFC3339), "from ")
	refused("1s", time.Now().Add(2*time.Minute).Format(time.RFC3339), "pulls are counted since") // another replica doesn't record pulls
	refused("15d", "2026-03-01T12:00:00Z", "can't be told: HEAD requests, which are uses too, are remembered since ")
	var list tagList
	r.Exec(t, "UPDATE pullstatisticsprocessingstate SET recorded_since = $1", yesterday)
	r.Manage(t, "GET", tags+"23h", "").Into(t, 200, &list)

	// The statistics can't tell which tags are unused if pulls in the audit log have waited for
	// hours to be counted, or if the audit log comes from another database server.
	r.Exec(t, "INSERT INTO auditlog (kind, time, counted_by) VALUES ('pull_repo', now() - interval '3 hours', 'audit')")
	r.Manage(t, "GET", tags+"1h", "").Refused(t, 503, "unavailable", "the statistics of pulls are 3h0m[0-9]s behind")
	r.Exec(t, "UPDATE pullstatisticsprocessingstate SET last_processed_xid = '1099511627776'")
	r.Manage(t, "GET", tags+"1h", "").Refused(t, 409, "invalid_request", "purser pulls reset")

	r.Exec(t, "ALTER TABLE tagpullstatistics RENAME TO elsewhere")
	r.Exec(t, "UPDATE pullstatisticsprocessingstate SET last_processed_xid = '0', recorded_since = now() - interval '9 days'")
	r.Exec(t, "DELETE FROM auditlog")
	r.Exec(t, "UPDATE tags SET created_at = now() - interval '9 days', updated_at = NULL")
	r.Manage(t, "GET", tags+"1h", "").Refused(t, 503, "unavailable", "the statistics of pulls can't be read now")

	for _, change := range map[string]func(*servertest.Options, *db.DB){
		"no statistics": func(*servertest.Options, *db.DB) {},
		"nobody counts": func(o *servertest.Options, d *db.DB) {
			o.Management.Pulls, _ = pullstats.NewReader(pullstats.Options{DB: d})
		},
	} {
		off := onDatabase(t, change)
		off.Put(t, "acme/app", "v1", off.Simple(t, "acme/app", 1, nil))
		off.Manage(t, "GET", tags+"90d", "").Refused(t, 409, "invalid_request", "pulls aren't counted here.*pull_statistics.enabled")
	}
}

// TestAPITagsNotPulledForByTheDatabase: the database's clock is ten days behind that of the process. A
// tag that was pushed 85 days ago by the database's clock wasn't unused for 90 days.
func TestAPITagsNotPulledForByTheDatabase(t *testing.T) {
	t.Parallel()
	dsn := dbtest.DSN(t)
	d, stats := dbtest.Open(t, dsn), dbtest.Open(t, dsn+"&search_path=public,pg_catalog")
	// The database's clock can't be set. A function of the same name that comes first stands for it, for
	// statements that are prepared later.
	if _, err := d.Pool.Exec(t.Context(), `CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz
		LANGUAGE sql VOLATILE AS $$SELECT pg_catalog.clock_timestamp() - interval '10 days'$$`); err != nil {
		t.Fatal(err)
	}
	r := replica(t, dsn, pgtest.TempDir(t), func(o *servertest.Options) {
		var err error
		if o.Management.Pulls, err = pullstats.NewReader(pullstats.Options{DB: d}); err != nil {
			t.Fatal(err)
		}
		places := statsdb.Databases{Log: d, Stats: stats, Alive: catalog.LivingNamespaces}
		if o.Management.PullStats, err = pullstats.NewSyncWorker(pullstats.SyncOptions{Databases: places, Logger: slog.New(slog.DiscardHandler)}); err != nil {
			t.Fatal(err)
		}
	})
	for i, name := range []string{"old", "young"} {
		r.Put(t, "acme/app", name, r.Simple(t, "acme/app", i, nil))
	}
	r.Manage(t, "POST", "/pull_statistics/flush", "").WantStatus(t, 200)
	r.Exec(t, "UPDATE pullstatisticsprocessingstate SET recorded_since = now() - interval '200 days', checks_since = now() - interval '200 days'")
	r.Exec(t, "UPDATE tags SET updated_at = NULL, created_at = now() - CASE name WHEN 'old' THEN interval '101 days' ELSE interval '95 days' END")
	var list tagList
	r.Manage(t, "GET", "/repository/acme/app/tag/?not_pulled_for=90d", "").Into(t, 200, &list)
	if list.names() != "old" {
		t.Errorf("by the database's clock %q weren't used for 90 days, want old", list.names())
	}
}

// TestAPITagsNotPulledForInDoubt: while the database's clock is in doubt, the API must say so, and list
// nothing.
func TestAPITagsNotPulledForInDoubt(t *testing.T) {
	t.Parallel()
	r := whole(t)
	r.Put(t, "acme/app", "v1", r.Simple(t, "acme/app", 1, nil))
	r.Manage(t, "POST", "/pull_statistics/flush", "").WantStatus(t, 200)
	r.Exec(t, "UPDATE pullstatisticsprocessingstate SET recorded_since = now() - interval '200 days', checks_since = now() - interval '200 days'")
	r.Exec(t, "INSERT INTO clock (seen_at, boot, up, doubt) VALUES (now(), '', 0, 'it was set') ON CONFLICT (one) DO UPDATE SET doubt = 'it was set'")
	const tags = "/repository/acme/app/tag/?not_pulled_for=90d"
	r.Manage(t, "GET", tags, "").Refused(t, 503, "unavailable", "which tags weren't pulled for 90d can't be told now: it was set; .*purser clock confirm")
	r.Manage(t, "POST", "/clock/confirm", "").WantStatus(t, 200)
	var list tagList
	r.Manage(t, "GET", tags, "").Into(t, 200, &list)
	if list.names() != "" {
		t.Errorf("%q weren't used for 90 days", list.names())
	}
}

// besideAnother returns a registry with the tags checked, pulled and never of acme/app, none of
// which was used for 100 days as far as the statistics know. Another process has just answered a
// HEAD of checked and a GET of pulled. It writes these uses once `write` is called. The registry
// waits for this process as long as `patience`.
func besideAnother(t *testing.T, patience time.Duration) (r *registry, write func()) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	quiet := slog.New(slog.DiscardHandler)
	var places statsdb.Databases
	r = onDatabase(t, func(o *servertest.Options, d *db.DB) {
		var err error
		places = statsdb.Databases{Log: d, Stats: d, Alive: catalog.LivingNamespaces}
		o.Management.Pulls, err = pullstats.NewReader(pullstats.Options{DB: d})
		must(err)
		o.Management.PullStats, err = pullstats.NewSyncWorker(pullstats.SyncOptions{Databases: places, Patience: patience, Logger: quiet})
		must(err)
	})
	lastUsed, err := pullstats.NewLastUsedRecorder(pullstats.LastUsedOptions{Databases: places, Log: quiet})
	must(err)
	log := audit.NewRecorder(audit.RecorderOptions{DB: places.Log, Alive: catalog.AliveRepositories, Log: quiet})
	other := pullstats.NewRecorder(pullstats.RecorderOptions{Log: log, Count: true, LastUsed: lastUsed, Logger: quiet})
	must(other.Open(t.Context()))
	digests := map[string]oci.Digest{}
	for i, name := range []string{"checked", "pulled", "never"} {
		digests[name] = r.Put(t, "acme/app", name, r.Simple(t, "acme/app", i, nil))
	}
	r.Manage(t, "POST", "/pull_statistics/flush", "").WantStatus(t, 200)
	r.Exec(t, "UPDATE pullstatisticsprocessingstate SET recorded_since = now() - interval '200 days', checks_since = now() - interval '200 days'")
	r.Exec(t, "UPDATE tags SET updated_at = NULL, created_at = now() - interval '100 days'")
	var id int64
	must(r.DB.Pool.QueryRow(t.Context(), "SELECT id FROM repositories WHERE path = 'acme/app'").Scan(&id))
	use := func(tag string) audit.Entry {
		return audit.Entry{Kind: audit.PullRepo, Repository: "acme/app", RepositoryID: id, Tag: tag, Digest: digests[tag]}
	}
	other.Checked(t.Context(), use("checked"))
	other.Pulled(t.Context(), use("pulled"))
	return r, func() {
		ctx, stop := context.WithCancel(context.Background())
		var running errgroup.Group
		for _, run := range []func(context.Context) error{other.Run, lastUsed.Run, log.Run} {
			running.Go(func() error { return run(ctx) })
		}
		t.Cleanup(func() {
			stop()
			running.Wait() //nolint:errcheck // they return nil
		})
	}
}

// unusedOnce lists the tags of acme/app that weren't used for 90 days. It calls `fn` when the API
// has asked the other processes for their uses, or has answered without that.
func unusedOnce(t *testing.T, r *registry, fn func()) answer {
	t.Helper()
	asked := func() (n int64) {
		if err := r.DB.Pool.QueryRow(t.Context(), "SELECT last_value FROM pullrecorders_asked").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	before, answers := asked(), make(chan answer, 1)
	go func() { answers <- r.Manage(t, "GET", "/repository/acme/app/tag/?not_pulled_for=90d&sort=name", "") }()
	eventually(t, "the API asks the other process", func() bool { return len(answers) > 0 || asked() > before })
	fn()
	return <-answers
}

// TestAPITagsNotPulledForWaits: another process has answered a HEAD and a GET, and hasn't written
// these uses when a client lists the unused tags. The API must wait until that process has, and
// must not list their tags.
func TestAPITagsNotPulledForWaits(t *testing.T) {
	t.Parallel()
	r, write := besideAnother(t, time.Minute)
	var list tagList
	unusedOnce(t, r, write).Into(t, 200, &list)
	if list.names() != "never" {
		t.Errorf("the unused tags are %q, want never", list.names())
	}
}

// TestAPITagsNotPulledForUnwritten: the other process doesn't write its uses. The API must answer
// that it can't tell now which tags are unused.
func TestAPITagsNotPulledForUnwritten(t *testing.T) {
	t.Parallel()
	r, _ := besideAnother(t, 100*time.Millisecond)
	unusedOnce(t, r, func() {}).Refused(t, 503, "unavailable", "which tags weren't pulled for 90d can't be told now: a process hasn't written yet")
}

// TestAPITagsNotPulledForKilled: the other process counts as killed while the API waits for its
// uses, so the statistics lack uses. The API must notice that after it has waited.
func TestAPITagsNotPulledForKilled(t *testing.T) {
	t.Parallel()
	r, _ := besideAnother(t, time.Minute)
	unusedOnce(t, r, func() {
		r.Exec(t, `
			WITH killed AS (UPDATE pullrecorders SET ended_at = now() RETURNING id)
			UPDATE pullstatisticsprocessingstate SET recorded_since = now() FROM killed`)
	}).Refused(t, 409, "invalid_request", "which tags weren't pulled for 90d can't be told: pulls are counted since")
}
