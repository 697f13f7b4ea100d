package gc_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/gc"
)

// queueBlobs inserts n rows into gc_blob_review_queue. The rows become due when the
// duration `due` has passed; if it is negative, they are due already. If `aside` is true,
// the rows are marked as failed for good. `seed` makes the digests of each call different.
func (b bundle) queueBlobs(t *testing.T, seed string, n int, due time.Duration, aside bool) {
	t.Helper()
	b.Exec(t, `
		INSERT INTO gc_blob_review_queue (digest, review_after, event, review_count, set_aside_at, last_error)
		SELECT '\x01'::bytea || sha256(convert_to($1 || i, 'UTF8')), now() + $3::interval, 'blob_upload',
			CASE WHEN $4 THEN 10 ELSE 0 END, CASE WHEN $4 THEN now() END, CASE WHEN $4 THEN 'no luck' END
		FROM generate_series(1, $2::int) i`, seed, n, due, aside)
}

func exact(n int64) catalog.Count { return catalog.Count{Rows: n, Exact: true} }

func TestGCStatusOfNothing(t *testing.T) {
	t.Parallel()
	s, err := setup(t).GCStatus(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	queue := gc.QueueStatus{Due: exact(0), Waiting: exact(0), Failed: exact(0)}
	want := gc.GCStatus{AsOf: s.AsOf, Manifests: queue, Blobs: queue, Failed: []gc.FailedReview{}}
	want.Doomed.Objects, want.Doomed.Due, want.Doomed.Failing, want.Uploads.Uploads = exact(0), exact(0), exact(0), exact(0)
	want.Doomed.Kept, want.Doomed.SecondSweeps, want.Lost, want.Stored.Blobs = exact(0), exact(0), exact(0), exact(0)
	want.Stored.Shared.Blobs, want.Reclaimable.Blobs, want.Doomed.Foreign = exact(0), exact(0), exact(0)
	if got, want := fmt.Sprintf("%+v", s), fmt.Sprintf("%+v", want); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if age := time.Since(s.AsOf); age < 0 || age > time.Minute {
		t.Errorf("the state is %v old", age)
	}
}

func TestGCStatus(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.queueBlobs(t, "due", 3, -2*time.Hour, false)
	b.queueBlobs(t, "older, but failed", 4, -9*time.Hour, true)
	b.queueBlobs(t, "waiting", 5, time.Hour, false)
	b.Exec(t, `INSERT INTO gc_manifest_review_queue (top_level_namespace_id, repository_id, manifest_id, review_after, event)
		SELECT 1, 1, i, now() + i * interval '1 minute', 'tag_delete' FROM generate_series(-1, 7) i WHERE i <> 0`)
	b.Exec(t, `INSERT INTO gc_doomed_objects (storage_key, size, doomed_at, delete_after, attempts, last_error, sweeping) VALUES
		('a', 100, now(), now() - interval '1 s', 0, NULL, false),
		('b', 200, now() - interval '1 h', now() + interval '1 h', 2, 'newer', true),
		('c', 300, now() - interval '2 h', now() + interval '1 h', 9, 'older', true),
		('d', 400, now(), now() + interval '1 h', 0, NULL, false)`)
	b.Exec(t, `INSERT INTO gc_doomed_objects (storage_key, of_upload, delete_after, again_at, sweeping) VALUES
		('swept once', true, now() + interval '1 h', now() + interval '1 h', true),
		('too', true, now() + interval '2 h', now() + interval '2 h', true)`)
	b.Exec(t, "INSERT INTO gc_doomed_objects (storage_key, size) VALUES ('docker/registry/v2/blobs/data', 70)")
	b.Exec(t, "INSERT INTO blobs (digest, size, storage_key, lost_at) VALUES ('\\x01', 5, 'lost', now()), ('\\x02', 50, 'there', NULL)")
	b.Exec(t, "DELETE FROM gc_blob_review_queue WHERE digest IN ('\\x01', '\\x02')")
	b.Exec(t, `INSERT INTO uploads (id, repository, storage_key, size) VALUES
		(gen_random_uuid(), 'r', 'u1', 10), (gen_random_uuid(), 'r', 'u2', 20), (gen_random_uuid(), '', 'made ahead', 0)`)
	b.Exec(t, `INSERT INTO gc_activity (minute, manifests_deleted, blobs_deleted, objects_swept, bytes_swept) VALUES
		(date_trunc('minute', now()), 1, 2, 3, 4),
		(date_trunc('minute', now() - interval '30 min'), 10, 20, 30, 40),
		(date_trunc('minute', now() - interval '2 h'), 100, 200, 300, 400),
		(date_trunc('minute', now() - interval '25 h'), 1000, 2000, 3000, 4000)`)

	s, err := b.GCStatus(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	near := func(what string, got, want int64) {
		t.Helper()
		if got < want || got > want+60 {
			t.Errorf("%s: %d, want about %d", what, got, want)
		}
	}
	near("oldest overdue blob", s.Blobs.OldestOverdueSeconds, 7200)
	near("oldest overdue manifest", s.Manifests.OldestOverdueSeconds, 60)
	for what, next := range map[string]struct {
		at   *time.Time
		want time.Duration
	}{"blob": {s.Blobs.NextDue, time.Hour}, "manifest": {s.Manifests.NextDue, time.Minute}} {
		if next.at == nil || next.at.Sub(s.AsOf) > next.want || next.at.Sub(s.AsOf) < next.want-time.Minute {
			t.Errorf("next %s: %v, want in about %v", what, next.at, next.want)
		}
	}
	if s.Doomed.FailingSince == nil || s.AsOf.Sub(*s.Doomed.FailingSince) < 2*time.Hour {
		t.Errorf("failing since %v, want since 2 h", s.Doomed.FailingSince)
	}
	b.testBacklog(t, s)
	if len(s.Failed) != 4 {
		t.Errorf("failed reviews: %+v, want four", s.Failed)
	}

	s.Failed = nil
	s.AsOf, s.Blobs.NextDue, s.Manifests.NextDue, s.Doomed.FailingSince = time.Time{}, nil, nil, nil
	s.Blobs.OldestOverdueSeconds, s.Manifests.OldestOverdueSeconds = 0, 0
	got, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.NewReplacer("\n", "", "\t", "", "#", `{"count":`, ";", `,"exact":true}`).Replace(`{
		"as_of":"0001-01-01T00:00:00Z","stored":{"blobs":#2;,"bytes":55,"shared":{"blobs":#0;,"bytes":0}},"reclaimable":{"blobs":#0;,"bytes":0},
		"manifests":{"due":#1;,"waiting":#7;,"set_aside":#0;,"oldest_overdue_seconds":0,"next_due":null},
		"blobs":{"due":#3;,"waiting":#5;,"set_aside":#4;,"oldest_overdue_seconds":0,"next_due":null},
		"set_aside":null,"doomed":{"objects":#4;,"second_sweeps":#2;,"due":#1;,"bytes":1000,"kept":#1;,"kept_bytes":400,"foreign":#1;,"foreign_bytes":70,"failing":#2;,"last_error":"older","failing_since":null},
		"lost":#1;,"uploads":{"uploads":#2;,"bytes":30},
		"last_hour":{"manifests":11,"blobs":22,"objects":33,"bytes":44},
		"last_day":{"manifests":111,"blobs":222,"objects":333,"bytes":444}}`)
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// testBacklog checks that GCBacklog, the cheaper query that runs all the time, returns the
// same numbers as GCStatus returned in `s`.
func (b bundle) testBacklog(t *testing.T, s gc.GCStatus) {
	t.Helper()
	backlog, err := b.GCBacklog(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if backlog.Doomed != s.Doomed.PendingBacklog || backlog.Manifests.Waiting != s.Manifests.Waiting ||
		backlog.Blobs.Due != s.Blobs.Due || backlog.Blobs.Failed != s.Blobs.Failed {
		t.Errorf("the backlog is %+v, the status %+v", backlog, s)
	}
}

func TestGCStatusNamesFailedReviews(t *testing.T) {
	catalogtest.AtBoth(t, testGCStatusNamesFailedReviews)
}

func testGCStatusNamesFailedReviews(t *testing.T, dsn string) {
	b := replica(t, dsn)
	config := b.Push(t, "library/app", "config")
	d := b.Put(t, "library/app", catalogtest.Image(t, config, nil, nil))
	b.Exec(t, "UPDATE gc_blob_review_queue SET set_aside_at = '2026-01-02 03:04:05Z', last_error = 'no luck'")
	b.Exec(t, "UPDATE gc_manifest_review_queue SET set_aside_at = '2026-01-02 03:04:06Z', last_error = 'no more luck'")
	b.Exec(t, `INSERT INTO gc_manifest_review_queue (top_level_namespace_id, repository_id, manifest_id, event, set_aside_at)
		VALUES (77, 77, 77, 'tag_delete', '2026-01-02 03:04:04Z')`)
	s, err := b.GCStatus(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(s.Failed)
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf(`[{"kind":"manifest","repository":"library/app","digest":"%s","event":"manifest_upload","set_aside_at":"2026-01-02T03:04:06Z","last_error":"no more luck"},`+
		`{"kind":"blob","digest":"%s","event":"blob_upload","set_aside_at":"2026-01-02T03:04:05Z","last_error":"no luck"},`+
		`{"kind":"manifest","digest":"","event":"tag_delete","set_aside_at":"2026-01-02T03:04:04Z","last_error":""}]`, d, config)
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	b.queueBlobs(t, "many", 100, 0, true)
	if s, err = b.GCStatus(t.Context()); err != nil || len(s.Failed) != 7 {
		t.Errorf("%d are named (%v), want five blobs and two manifests", len(s.Failed), err)
	}
}

// A review queue and the table of pending deletions have more rows than GCBacklog counts.
// GCBacklog must estimate their numbers, and mark the estimates as inexact. Smaller numbers
// must be exact.
func TestGCBacklogOfLargeQueues(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const n = 30_000 // three times the number up to which GCBacklog counts
	b.queueBlobs(t, "waiting", n, time.Hour, false)
	b.queueBlobs(t, "due", 100, -time.Hour, false)
	b.Exec(t, "INSERT INTO gc_doomed_objects (storage_key, size, delete_after) SELECT 'k' || i, 1000, now() + interval '1 h' FROM generate_series(1, $1::int) i", n)
	b.Exec(t, `INSERT INTO gc_doomed_objects (storage_key, of_upload, delete_after, again_at, sweeping)
		SELECT 'again' || i, true, now() + interval '1 h', now() + interval '1 h', true FROM generate_series(1, $1::int) i`, 2*n)
	b.Exec(t, "ANALYZE gc_blob_review_queue")
	b.Exec(t, "ANALYZE gc_doomed_objects")
	s, err := b.GCBacklog(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	near := func(what string, got, want int64) {
		t.Helper()
		if got < want*9/10 || got > want*11/10 {
			t.Errorf("%s: %d, want about %d", what, got, want)
		}
	}
	near("waiting", s.Blobs.Waiting.Rows, n)
	near("doomed", s.Doomed.Objects.Rows, n)
	near("doomed bytes", s.Doomed.Bytes, 1000*n)
	near("second sweeps", s.Doomed.SecondSweeps.Rows, 2*n)
	if s.Blobs.Waiting.Exact || s.Doomed.Objects.Exact {
		t.Errorf("estimates are called exact: %+v", s)
	}
	if s.Blobs.Due != exact(100) || s.Doomed.Due != exact(0) {
		t.Errorf("what can be counted isn't exact: %+v", s)
	}
}

func TestRetryFailed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const n = 2500 // more than two batches
	b.queueBlobs(t, "aside", n, 5*time.Hour, true)
	b.queueBlobs(t, "waiting", 7, time.Hour, false)
	b.Exec(t, `INSERT INTO gc_manifest_review_queue (top_level_namespace_id, repository_id, manifest_id, event, review_count, set_aside_at)
		SELECT i % 2, i % 3, i, 'tag_delete', 10, now() FROM generate_series(1, 30) i`)
	b.Exec(t, "UPDATE gc_manifest_review_queue SET set_aside_at = now() + interval '1 minute' WHERE manifest_id = 30")

	if got, err := b.Collector.RetryFailed(t.Context(), gc.ReviewOfBlobs); err != nil || got != n {
		t.Fatalf("%d brought back (%v), want %d", got, err, n)
	}
	if got := b.Count(t, "SELECT count(*) FROM gc_blob_review_queue WHERE set_aside_at IS NULL AND review_count = 0 AND review_after <= now()"); got != n {
		t.Errorf("%d rows are due, want %d", got, n)
	}
	if got := b.Count(t, "SELECT count(*) FROM gc_blob_review_queue WHERE review_after > now() + interval '50 min'"); got != 7 {
		t.Errorf("%d rows wait, want the 7 that did not fail", got)
	}
	// The last row's set_aside_at is in the future, as if the row's review had failed for
	// good while RetryFailed was running. RetryFailed must leave this row alone.
	if got, err := b.Collector.RetryFailed(t.Context(), gc.ReviewOfManifests); err != nil || got != 29 {
		t.Fatalf("%d brought back (%v), want 29", got, err)
	}
	if got, err := b.Collector.RetryFailed(t.Context(), gc.ReviewOfBlobs); err != nil || got != 0 {
		t.Fatalf("%d brought back (%v) when nothing had failed", got, err)
	}
}
