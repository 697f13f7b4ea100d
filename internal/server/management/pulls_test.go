package management_test

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/hold"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/pullstats"
	"github.com/purser-registry/purser/internal/pullstats/statsdb"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// counting returns a registry that counts pulls only when the test calls `flush`. `flush`
// writes the recorded pulls into the audit log, counts them, and waits until `want` pulls in
// total have been counted.
func counting(t *testing.T) (r *registry, flush func(want int64)) {
	t.Helper()
	var recorder *audit.Recorder
	var lastUsed *pullstats.LastUsedRecorder
	r = onDatabase(t, func(o *servertest.Options, d *db.DB) {
		var err error
		if o.Management.Pulls, err = pullstats.NewReader(pullstats.Options{DB: d}); err != nil {
			t.Fatal(err)
		}
		quiet := slog.New(slog.DiscardHandler)
		places := statsdb.Databases{Log: d, Stats: d, Alive: catalog.LivingNamespaces}
		if o.Management.PullStats, err = pullstats.NewSyncWorker(pullstats.SyncOptions{Databases: places, Logger: quiet}); err != nil {
			t.Fatal(err)
		}
		if lastUsed, err = pullstats.NewLastUsedRecorder(pullstats.LastUsedOptions{Databases: places, Log: quiet}); err != nil {
			t.Fatal(err)
		}
		recorder = audit.NewRecorder(audit.RecorderOptions{DB: d, Alive: catalog.AliveRepositories, Log: quiet})
		o.Recorder = pullstats.NewRecorder(pullstats.RecorderOptions{Log: recorder, Count: true, LastUsed: lastUsed, Logger: quiet})
	})
	return r, func(want int64) {
		t.Helper()
		if err := errors.Join(recorder.Close(t.Context()), lastUsed.Close(t.Context())); err != nil {
			t.Fatal(err)
		}
		var state struct{ Counted int64 }
		eventually(t, "the pulls are counted", func() bool {
			r.Manage(t, "POST", "/pull_statistics/flush", "").Into(t, 200, &state)
			return state.Counted == want
		})
	}
}

type tagPulls struct {
	Name          string     `json:"tag_name"`
	Count         int        `json:"tag_pull_count"`
	Last          *time.Time `json:"last_tag_pull_date"`
	Check         *time.Time `json:"last_check_date"`
	Digest        oci.Digest `json:"manifest_digest"`
	TotalCount    int        `json:"manifest_total_pull_count"`
	ManifestLast  *time.Time `json:"manifest_last_pull_date"`
	RecordedSince *time.Time `json:"recorded_since"`
}

type manifestPulls struct {
	Digest        oci.Digest `json:"manifest_digest"`
	Count         int        `json:"manifest_total_pull_count"`
	Last          *time.Time `json:"manifest_last_pull_date"`
	LastTag       *string    `json:"last_tag_pulled"`
	RecordedSince *time.Time `json:"recorded_since"`
}

func recent(at *time.Time) bool { return at != nil && time.Since(*at).Abs() < time.Minute }

// TestAPIPulls: clients pull manifests by tag and by digest. The API must show the pulls of a
// tag, the pulls of a manifest, and, in pages, the pulls of all tags and manifests of the
// repository.
func TestAPIPulls(t *testing.T) {
	t.Parallel()
	r, flush := counting(t)
	const app = "/repository/acme/web/app"
	a := r.Put(t, "acme/web/app", "v1", r.Simple(t, "acme/web/app", 1, nil))
	r.Put(t, "acme/web/app", "same", r.Simple(t, "acme/web/app", 1, nil))
	b := r.Put(t, "acme/web/app", "moved", r.Simple(t, "acme/web/app", 2, nil))
	r.Put(t, "acme/web/app", "never", r.Simple(t, "acme/web/app", 3, nil))
	for _, ref := range []string{"v1", "v1", "same", a.String(), b.String(), "moved"} {
		if res := r.Do(t, "GET", "/v2/acme/web/app/manifests/"+ref, ""); res.StatusCode != 200 {
			t.Fatalf("pulling %s: %d", ref, res.StatusCode)
		}
	}
	r.Do(t, "HEAD", "/v2/acme/web/app/manifests/v1", "")
	r.Put(t, "acme/web/app", "moved", r.Simple(t, "acme/web/app", 1, nil))
	flush(6)

	var tag tagPulls
	r.Manage(t, "GET", app+"/tag/v1/pull_statistics", "").Into(t, 200, &tag)
	if tag.Name != "v1" || tag.Count != 2 || !recent(tag.Check) || tag.Digest != a || tag.TotalCount != 4 || !recent(tag.Last) || !recent(tag.ManifestLast) || !recent(tag.RecordedSince) {
		t.Errorf("%+v", tag)
	}
	tag = tagPulls{}
	r.Manage(t, "GET", app+"/tag/moved/pull_statistics", "").Into(t, 200, &tag)
	if tag.Count != 1 || tag.Check != nil || tag.Digest != a || tag.TotalCount != 4 {
		t.Errorf("a tag that moved keeps its own count: %+v", tag)
	}
	var raw map[string]any
	r.Manage(t, "GET", app+"/tag/never/pull_statistics", "").Into(t, 200, &raw)
	if raw["tag_pull_count"] != 0.0 || raw["last_tag_pull_date"] != nil || raw["manifest_total_pull_count"] != 0.0 || raw["manifest_last_pull_date"] != nil ||
		raw["recorded_since"] == nil || raw["last_check_date"] != nil || len(raw) != 8 {
		t.Errorf("never pulled: %v", raw)
	}
	var m manifestPulls
	r.Manage(t, "GET", app+"/manifest/"+a.String()+"/pull_statistics", "").Into(t, 200, &m)
	if m.Digest != a || m.Count != 4 || !recent(m.Last) || m.LastTag == nil || *m.LastTag != "same" || !recent(m.RecordedSince) {
		t.Errorf("%+v", m)
	}

	// Deleted tags and manifests are left out.
	r.Manage(t, "DELETE", app+"/tag/same", "")
	for _, limit := range []int{1, 2, 3, 100} {
		var got []string
		for next := ""; ; {
			var page struct {
				Repository    string
				Tags          []tagPulls
				Manifests     []manifestPulls
				NextPage      string     `json:"next_page"`
				RecordedSince *time.Time `json:"recorded_since"`
			}
			r.Manage(t, "GET", fmt.Sprintf("%s/pull_statistics?limit=%d&next_page=%s", app, limit, next), "").Into(t, 200, &page)
			if page.Repository != "acme/web/app" || !recent(page.RecordedSince) || len(page.Tags)+len(page.Manifests) > limit {
				t.Fatalf("%+v", page)
			}
			for _, tag := range page.Tags {
				got = append(got, fmt.Sprint(tag.Name, " ", tag.Count))
			}
			for _, m := range page.Manifests {
				got = append(got, fmt.Sprint(m.Digest, " ", m.Count))
			}
			if next = page.NextPage; next == "" {
				break
			}
		}
		want := []string{"moved 1", "v1 2", a.String() + " 4", b.String() + " 2"}
		if b.String() < a.String() {
			want[2], want[3] = want[3], want[2]
		}
		if strings.Join(got, ", ") != strings.Join(want, ", ") {
			t.Errorf("limit %d: %q, want %q", limit, got, want)
		}
	}
}

// TestAPIPullsOfRestoredTag: a tag that was pulled is deleted and later restored. While the tag
// is deleted, the API must not show its pull statistics. When the tag is restored, it must have
// the same number of pulls as before its deletion.
func TestAPIPullsOfRestoredTag(t *testing.T) {
	t.Parallel()
	r, flush := counting(t)
	const app = "/repository/acme/app"
	d := r.Put(t, "acme/app", "v1", r.Simple(t, "acme/app", 1, nil))
	for range 3 {
		r.Do(t, "GET", "/v2/acme/app/manifests/v1", "")
	}
	flush(3)
	if a := r.Manage(t, "DELETE", app+"/tag/v1", ""); a.StatusCode != 204 {
		t.Fatalf("deleting: %d %s", a.StatusCode, a.Content)
	}
	r.Manage(t, "GET", app+"/tag/v1/pull_statistics", "").Refused(t, 404, "not_found", "repository acme/app has no tag v1")
	var list struct{ Tags []tagPulls }
	r.Manage(t, "GET", app+"/pull_statistics", "").Into(t, 200, &list)
	if len(list.Tags) > 0 {
		t.Errorf("%+v", list)
	}
	if a := r.Manage(t, "POST", app+"/tag/v1/restore", fmt.Sprintf(`{"manifest_digest": %q}`, d)); a.StatusCode != 200 {
		t.Fatalf("restoring: %d %s", a.StatusCode, a.Content)
	}
	var tag tagPulls
	r.Manage(t, "GET", app+"/tag/v1/pull_statistics", "").Into(t, 200, &tag)
	if tag.Count != 3 || !recent(tag.Last) {
		t.Errorf("%+v", tag)
	}
}

// TestAPIPullsRealtimeWithoutRedis: a client asks for realtime statistics of a registry that
// doesn't use Redis. The answer must have the counts from the database, and its member realtime
// must be false, since only Redis knows pulls that aren't in the database yet.
func TestAPIPullsRealtimeWithoutRedis(t *testing.T) {
	t.Parallel()
	r, flush := counting(t)
	d := r.Put(t, "acme/app", "v1", r.Simple(t, "acme/app", 1, nil))
	r.Do(t, "GET", "/v2/acme/app/manifests/v1", "")
	flush(1)
	for _, path := range []string{"", "/tag/v1", "/manifest/" + d.String()} {
		var raw map[string]any
		r.Manage(t, "GET", "/repository/acme/app"+path+"/pull_statistics?realtime=true", "").Into(t, 200, &raw)
		if raw["realtime"] != false || raw["recorded_since"] == nil || !strings.Contains(fmt.Sprint(raw), "pull_count:1") {
			t.Errorf("%s: %v", path, raw)
		}
	}
	r.Manage(t, "GET", "/repository/acme/app/pull_statistics?realtime=maybe", "").Refused(t, 400, "invalid_request", "query.realtime: invalid boolean")
}

func TestAPIPullsRefused(t *testing.T) {
	t.Parallel()
	r, flush := counting(t)
	a := r.Put(t, "acme/app", "v1", r.Simple(t, "acme/app", 1, nil))
	flush(0)
	other := oci.Compute(oci.SHA256, []byte("other")).String()
	for path, text := range map[string]string{
		"/repository/acme/app/tag/v2/pull_statistics":                 "repository acme/app has no tag v2",
		"/repository/acme/app/manifest/" + other:                      "",
		"/repository/none/pull_statistics":                            "repository none is not known",
		"/repository/none/tag/v1/pull_statistics":                     "repository none is not known",
		"/repository/none/manifest/" + other + "/pull_statistics":     "repository none is not known",
		"/repository/acme/app/manifest/" + other + "/pull_statistics": "repository acme/app has no manifest " + other,
	} {
		r.Manage(t, "GET", path, "").Refused(t, 404, "not_found", text)
	}
	r.Manage(t, "GET", "/repository/acme/app/pull_statistics?limit=0", "").Refused(t, 400, "invalid_request", "limit")
	r.Manage(t, "GET", "/repository/acme/app/pull_statistics?next_page=e30", "").Refused(t, 400, "invalid_request", "next_page.*another")
	r.Manage(t, "GET", "/repository/acme/app/tag/-/pull_statistics", "").Refused(t, 400, "invalid_request", "")

	off := setup(t)
	off.Put(t, "acme/app", "v1", off.Simple(t, "acme/app", 1, nil))
	for _, path := range []string{"/repository/acme/app/pull_statistics", "/repository/acme/app/tag/v1/pull_statistics",
		"/repository/acme/app/manifest/" + a.String() + "/pull_statistics", "/pull_statistics"} {
		off.Manage(t, "GET", path, "").Refused(t, 404, "not_found", "pulls are not counted here: the settings pull_statistics.enabled and pull_statistics.redis are false")
	}
}

// TestAPIPullState: the position up to which the audit log was read has a transaction id that
// is higher than all those in the audit log, as after a restore of the database from a dump.
// The state of pull counting must then name the command "purser pulls reset", and the API must
// refuse a flush. After a reset, a flush must succeed. Pulls and uses must count as known from the
// reset on only, unless the client says that nothing was lost.
func TestAPIPullState(t *testing.T) {
	t.Parallel()
	r, flush := counting(t)
	r.Put(t, "acme/app", "v1", r.Simple(t, "acme/app", 1, nil))
	r.Do(t, "GET", "/v2/acme/app/manifests/v1", "")
	flush(1)
	var state struct {
		Counted int64
		Last    *time.Time `json:"last_processed_timestamp"`
		XID     uint64     `json:"last_processed_xid"`
		Problem string
		Pulls   *time.Time `json:"recorded_since"`
		Uses    *time.Time `json:"used_since"`
		HEADs   *time.Time `json:"checks_since"`
	}
	r.Manage(t, "GET", "/pull_statistics", "").Into(t, 200, &state)
	if state.Counted != 1 || !recent(state.Last) || state.XID == 0 || state.Problem != "" {
		t.Errorf("%+v", state)
	}
	if _, err := r.DB.Pool.Exec(t.Context(),
		"UPDATE pullstatisticsprocessingstate SET last_processed_xid = '1099511627776', recorded_since = now() - interval '60 days', checks_since = now() - interval '60 days'"); err != nil {
		t.Fatal(err)
	}
	r.Manage(t, "GET", "/pull_statistics", "").Into(t, 200, &state)
	if !strings.Contains(state.Problem, `"purser pulls reset"`) {
		t.Errorf("%+v", state)
	}
	r.Manage(t, "POST", "/pull_statistics/flush", "").Refused(t, 409, "invalid_request", "purser pulls reset")
	var reset struct{ Unread *int64 }
	r.Manage(t, "POST", "/pull_statistics/reset?nothing_lost=true", "").Into(t, 200, &reset)
	if reset.Unread == nil || *reset.Unread != 0 {
		t.Errorf("%+v", reset)
	}
	state.Problem = ""
	r.Manage(t, "GET", "/pull_statistics", "").Into(t, 200, &state)
	if state.Problem != "" || recent(state.Pulls) || recent(state.Uses) || recent(state.HEADs) {
		t.Errorf("after a move: %+v", state)
	}
	r.Manage(t, "POST", "/pull_statistics/reset", "").Into(t, 200, &reset)
	r.Manage(t, "GET", "/pull_statistics", "").Into(t, 200, &state)
	if !recent(state.Pulls) || !recent(state.Uses) || !recent(state.HEADs) {
		t.Errorf("after a recovery: %+v", state)
	}
	r.Manage(t, "POST", "/pull_statistics/flush", "").Into(t, 200, &state)
	if state.Counted != 1 || state.Problem != "" {
		t.Errorf("%+v", state)
	}
}

// TestAPIPullsResetOfReporters: the database was set back, perhaps to before what a reporter of holds has told
// since. So after a reset the reporter is silent until it reports again, and its holds stay. It stays live if
// nothing was lost, or if only pulls in Redis are given up.
func TestAPIPullsResetOfReporters(t *testing.T) {
	t.Parallel()
	r, flush := counting(t)
	d := r.Put(t, "acme/app", "v1", r.Simple(t, "acme/app", 1, nil))
	flush(0)
	const path = "/holds/prod?namespace=acme"
	report := func() { r.Manage(t, "PUT", path, fmt.Sprintf(`{"digests":["%s"]}`, d)).WantStatus(t, 200) }
	wants := func(what, state string) {
		t.Helper()
		var now hold.Reporter
		r.Manage(t, "GET", path, "").Into(t, 200, &now)
		if now.State != state || now.Digests != 1 {
			t.Errorf("%s: %+v, want it %s", what, now, state)
		}
	}
	for query, state := range map[string]string{"?redis=true": hold.Live, "?nothing_lost=true": hold.Live, "": hold.Silent} {
		report()
		wants("before"+query, hold.Live)
		r.Manage(t, "POST", "/pull_statistics/reset"+query, "").WantStatus(t, 200)
		wants("after"+query, state)
	}
	report()
	wants("after another report", hold.Live)
}
