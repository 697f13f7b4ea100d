package operate

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/server/servertest"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/gc"
	"github.com/purser-registry/purser/internal/gc/explain"
	"github.com/purser-registry/purser/internal/oci"
)

// garbage is the data of a registry in a test: an image with a tag, an image without tags
// whose review is due, and blobs, one of which no manifest references.
type garbage struct {
	t       *testing.T
	environ []string
	dsn     string
	store   string // directory
	db      *db.DB
	catalog *catalog.Catalog

	tagged, untagged, config, unused oci.Digest
}

func newGarbage(t *testing.T) *garbage {
	t.Helper()
	dsn := dbtest.DSN(t)
	g := &garbage{t: t, dsn: dsn, db: dbtest.Open(t, dsn), store: t.TempDir()}
	g.environ = []string{"PURSER_DATABASE_MAIN=" + dsn, "PURSER_STORAGE_FILESYSTEM_PATH=" + g.store, "PURSER_DATA_DIR=" + t.TempDir()}
	g.catalog = catalog.New(catalog.Options{DB: g.db, CacheOff: true, Log: slog.New(slog.DiscardHandler)})
	if _, err := blob.OpenDir(blob.DirOptions{Path: g.store}); err != nil {
		t.Fatal(err)
	}
	// Reviews are due at once after each event.
	if err := gc.New(gc.Options{Catalog: g.catalog, DB: g.db}).SetReviewDelays(t.Context(), 0, nil); err != nil {
		t.Fatal(err)
	}
	g.config, g.unused = g.push("config"), g.push("nobody wants this")
	g.tagged, g.untagged = g.put("1", "v1"), g.put("2")
	return g
}

// push stores a blob in library/app.
func (g *garbage) push(content string) oci.Digest {
	g.t.Helper()
	list, err := g.catalog.StartUploads(g.t.Context(), catalog.StartOptions{N: 1})
	if err != nil {
		g.t.Fatal(err)
	}
	u, d := list[0], oci.Compute(oci.SHA256, []byte(content))
	key := fmt.Sprintf("%s-%d", u.StorageKey, u.Ticket)
	if err := os.WriteFile(filepath.Join(g.store, "objects", key[:2], key), []byte(content), 0o600); err != nil {
		g.t.Fatal(err)
	}
	u.Repository, u.Size = "library/app", int64(len(content))
	if err := g.catalog.CommitUpload(g.t.Context(), u, d, key, false); err != nil {
		g.t.Fatal(err)
	}
	return d
}

// put stores an image of library/app.
func (g *garbage) put(name string, tags ...string) oci.Digest {
	g.t.Helper()
	payload := fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":%q,"config":{"mediaType":"application/vnd.oci.image.config.v1+json",`+
		`"digest":%q,"size":6},"layers":[],"annotations":{"name":%q}}`, oci.MediaTypeImageManifest, g.config, name)
	m, err := oci.ParseManifest("", payload)
	if err != nil {
		g.t.Fatal(err)
	}
	d := oci.Compute(oci.SHA256, payload)
	if err := g.catalog.PutManifest(g.t.Context(), catalog.NewManifest{
		Repository: "library/app", Digest: d, Manifest: m, Payload: payload, Tags: tags,
	}); err != nil {
		g.t.Fatal(err)
	}
	return d
}

func (g *garbage) exec(sql string, args ...any) {
	g.t.Helper()
	if _, err := g.db.Pool.Exec(g.t.Context(), sql, args...); err != nil {
		g.t.Fatalf("%s: %v", sql, err)
	}
}

// run runs a command, and returns its output. The command must succeed and print nothing to
// stderr.
func (g *garbage) run(args ...string) string {
	g.t.Helper()
	code, stdout, stderr := purser(g.t, g.environ, args...)
	if code != 0 || stderr != "" {
		g.t.Fatalf("%v: exit code %d, stdout:\n%s\nstderr:\n%s", args, code, stdout, stderr)
	}
	return stdout
}

// same fails the test unless `text` equals `want`. In want, TIME stands for any time and
// "for AGE" for any duration.
func same(t *testing.T, text, want string) {
	t.Helper()
	text = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`).ReplaceAllString(text, "TIME")
	text = regexp.MustCompile(`\bfor \d+s`).ReplaceAllString(text, "for AGE")
	if text != want {
		t.Errorf("it printed\n%s\nwant\n%s", text, want)
	}
}

func TestGCStatusText(t *testing.T) {
	t.Parallel()
	exact := func(n int64) catalog.Count { return catalog.Count{Rows: n, Exact: true} }
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	next, since := now.Add(3*time.Hour+12*time.Minute), now.Add(-26*time.Hour)
	s := gc.GCStatus{
		AsOf:      now,
		Manifests: gc.QueueStatus{Due: exact(0), Waiting: exact(12), Failed: exact(0), NextDue: &next},
		Blobs: gc.QueueStatus{Due: exact(1204), Waiting: catalog.Count{Rows: 23_456_789}, Failed: exact(3),
			OldestOverdueSeconds: 4*3600 + 5*60},
		Uploads:  gc.UploadStatus{Uploads: exact(2), Bytes: 10 << 20},
		LastHour: gc.Reclaimed{Manifests: 1, Blobs: 2, Objects: 3, Bytes: 4 << 10},
		LastDay:  gc.Reclaimed{Manifests: 1000, Blobs: 2000, Objects: 3000, Bytes: 5 << 30},
	}
	d := oci.Compute(oci.SHA256, nil)
	s.Failed = []gc.FailedReview{
		{Kind: gc.ReviewOfManifests, Repository: "library/app", Digest: d, FailedAt: now.Add(-time.Hour), LastError: "no luck"},
		{Kind: gc.ReviewOfBlobs, Digest: d, FailedAt: now.Add(-2 * time.Hour), LastError: "no luck either"},
	}
	s.Doomed = gc.PendingStatus{Failing: exact(7), LastError: "permission denied", FailingSince: &since}
	s.Doomed.Objects, s.Doomed.Due, s.Doomed.Bytes = exact(1200), exact(1000), 3<<30
	s.Stored.BlobCount = gc.BlobCount{Blobs: catalog.Count{Rows: 1_234_567}, Bytes: 5 << 40}
	s.Stored.Shared = gc.BlobCount{Blobs: catalog.Count{Rows: 34_567}, Bytes: 2 << 40}
	s.Reclaimable = gc.BlobCount{Blobs: exact(17), Bytes: 1 << 30}
	var out strings.Builder
	if err := writeGCStatus(&out, s); err != nil {
		t.Fatal(err)
	}
	same(t, out.String(), `
QUEUE      DUE    WAITING      FAILED  OLDEST OVERDUE  NEXT DUE
manifests  0      12           0       -               in 3h12m
blobs      1,204  ~23,456,789  3       4h5m            -

stored             ~1,234,567 (5.0 TiB)
  shared           ~34,567 (2.0 TiB), in several repositories
reclaimable        17 (1.0 GiB), unused, which the next reviews delete
pending deletions  1,200 (3.0 GiB), 1,000 due
  failing          7, the oldest for 1d2h: permission denied
uploads            2 in progress (10 MiB)

RECLAIMED  MANIFESTS  BLOBS  OBJECTS  SIZE
last hour  1          2      3        4.0 KiB
last day   1,000      2,000  3,000    5.0 GiB

FAILED REVIEWS ("purser gc retry" makes all due again)
manifest library/app@`[1:]+d.String()+`, 1h ago: no luck
blob `+d.String()+`, 2h ago: no luck either
… and 1 more
`)
}

func TestGCStatus(t *testing.T) {
	t.Parallel()
	g := newGarbage(t)
	if text := g.run("gc", "status"); !strings.Contains(text, "\nmanifests  1    0        0 ") || strings.Contains(text, "failing") {
		t.Errorf("it printed\n%s\nwant one manifest due", text)
	}
	var s gc.GCStatus
	if err := json.Unmarshal([]byte(g.run("gc", "status", "-o", "json")), &s); err != nil {
		t.Fatal(err)
	}
	if want := (catalog.Count{Rows: 2, Exact: true}); s.Blobs.Due != want {
		t.Errorf("%+v blobs due, want %+v", s.Blobs.Due, want)
	}
}

func TestGCExplain(t *testing.T) {
	t.Parallel()
	g := newGarbage(t)
	same(t, g.run("gc", "explain", "library/app@"+g.tagged.String()), "manifest library/app@"+g.tagged.String()+`
  kept: tag v1 of library/app points to it
  no review is planned; it will be reviewed when something that refers to it is deleted
`)
	if byTag := g.run("gc", "explain", "library/app:v1"); byTag != g.run("gc", "explain", "library/app@"+g.tagged.String()) {
		t.Errorf("of the tag it printed\n%s", byTag)
	}
	if short := g.run("gc", "explain", "library/app@"+g.tagged.Hex()[:8]); short != g.run("gc", "explain", "library/app@"+g.tagged.String()) {
		t.Errorf("by a short digest: %s", short)
	}
	same(t, g.run("gc", "explain", "library/app@"+g.untagged.String()), "manifest library/app@"+g.untagged.String()+`
  is due for review since TIME (for AGE), because it was pushed without a tag, or a client was told that it exists; nothing keeps it, so it will be deleted
`)
	if text := g.run("gc", "explain", g.config.String()); !strings.HasPrefix(text, "blob "+g.config.String()+
		"\n  kept: library/app@"+g.tagged.String()+" uses it as configuration\n") {
		t.Errorf("of the configuration it printed\n%s", text)
	}
	var e explain.BlobExplanation
	if err := json.Unmarshal([]byte(g.run("gc", "explain", "-o", "json", g.unused.String())), &e); err != nil {
		t.Fatal(err)
	}
	if e.Fate != explain.FateDue || e.Size != 17 {
		t.Errorf("got %+v", e)
	}

	unknown := oci.Compute(oci.SHA256, []byte("unknown")).String()
	for _, tc := range []struct{ arg, want string }{
		{"library/app@" + unknown, "purser: manifest " + unknown + " is not known to repository library/app\n"},
		{"library/none@" + unknown, "purser: repository library/none is not known to this registry\n"},
		{"library/app:none", "purser: repository library/app has no tag none\n"},
		{"library/none:v1", "purser: repository library/none is not known to this registry\n"},
		{unknown, "purser: blob " + unknown + " is not known to this registry, and no repository has a manifest with this digest: it was never pushed, or it has been deleted\n"},
		{g.tagged.String(), "purser: " + g.tagged.String() + " is not a blob, but a manifest of library/app: name its repository too, as in library/app@" + g.tagged.String() + "\n"},
	} {
		if code, stdout, stderr := purser(t, g.environ, "gc", "explain", tc.arg); code != 3 || stdout != "" || stderr != tc.want {
			t.Errorf("%s: exit code %d, stdout %q, stderr %q; want %q", tc.arg, code, stdout, stderr, tc.want)
		}
	}
}

// TestGCOverAPI: with PURSER_SERVER set, the gc commands ask the registry at that URL. They
// must print the same as without PURSER_SERVER, when they read the registry's database
// themselves. If no registry answers at the URL, they must read the database.
func TestGCOverAPI(t *testing.T) {
	t.Parallel()
	g := newGarbage(t)
	g.exec("UPDATE gc_blob_review_queue SET review_after = now() - interval '3 h'")
	g.exec("UPDATE gc_manifest_review_queue SET review_after = now() - interval '3 h'")
	r := servertest.NewReplica(t, g.dsn, g.store)
	away := httptest.NewServer(nil)
	away.Close()
	overAPI := []string{"PURSER_DATABASE_MAIN=postgres://nowhere.invalid/x", "PURSER_SERVER=" + r.URL}
	withoutAnswer := append(slices.Clone(g.environ), "PURSER_SERVER="+away.URL)
	unknown := oci.Compute(oci.SHA256, []byte("unknown")).String()
	for _, args := range [][]string{
		{"status"}, {"status", "-o", "json"}, {"retry"}, {"retry", "-o", "json"},
		{"explain", "library/app@" + g.tagged.String()}, {"explain", "library/app@" + g.untagged.String()},
		{"explain", g.config.String()}, {"explain", "-o", "json", g.unused.String()}, {"explain", "-o", "json", "library/app@" + g.untagged.String()},
		{"explain", unknown}, {"explain", "library/app@" + unknown}, {"explain", "library/none@" + unknown},
		{"explain", "library/app@" + g.tagged.String()[:15]}, {"explain", "library/app@" + g.tagged.Hex()[:9] + "…"}, {"explain", "library/app@000000"}, {"explain", "library/none@000000"},
		{"explain", "library/app:v1"}, {"explain", "library/app:none"}, {"explain", "library/none:v1"}, {"explain", g.tagged.String()},
	} {
		args = append([]string{"gc"}, args...)
		want, wantOut, wantErr := purser(t, g.environ, args...)
		code, stdout, stderr := purser(t, overAPI, args...)
		if code != want || ages.ReplaceAllString(stdout, "N") != ages.ReplaceAllString(wantOut, "N") || stderr != wantErr {
			t.Errorf("%v over the API: exit code %d, stdout\n%s\nstderr %q; want %d,\n%s\n%q", args, code, stdout, stderr, want, wantOut, wantErr)
		}
		code, stdout, stderr = purser(t, withoutAnswer, args...)
		note := "No registry answers at " + away.URL + ": asking the database.\n"
		if code != want || ages.ReplaceAllString(stdout, "N") != ages.ReplaceAllString(wantOut, "N") || stderr != note+wantErr {
			t.Errorf("%v without an answer: exit code %d, stdout\n%s\nstderr %q; want %d,\n%s\n%q", args, code, stdout, stderr, want, wantOut, note+wantErr)
		}
	}
}

// ages matches times and durations, which differ between two runs.
var ages = regexp.MustCompile(`\d{4}-\d\d-\d\dT[0-9:.]+Z?|"oldest_overdue_seconds": \d+|\b(\d+[hms])+\b`)

func TestGCRefusals(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"explain", "foo"}, `invalid digest "foo": it must be algorithm:hexadecimal; write <repository>@<digest> or <repository>:<tag> for a manifest`},
		{[]string{"explain", "sha256:2c26b46b6"}, "a short digest needs its repository"},
		{[]string{"explain", "library/app:-v1"}, "or <digest> for a blob"},
		{[]string{"explain", "localhost:5000/app"}, `"5000/app"`},
		{[]string{"explain", "Library/app:v1"}, `invalid repository name "Library/app"`},
		{[]string{"explain", "Library/app@sha256:00"}, `invalid repository name "Library/app"`},
		{[]string{"explain", "library/app@v1"}, `invalid digest "v1"`},
		{[]string{"explain"}, "name one thing to explain"},
		{[]string{"explain", "a", "b"}, "name one thing to explain"},
		{[]string{"status", "-o", "yaml"}, "text or json"},
		{[]string{"status", "extra"}, "extra"},
		{[]string{"run", "--limit", "5"}, "--limit is for --dry-run"},
		{[]string{"run", "--dry-run", "--limit", "-1"}, "use a whole number from 0"},
	} {
		code, stdout, stderr := purser(t, []string{"PURSER_DATABASE_MAIN=postgres://nowhere.invalid/x"}, append([]string{"gc"}, tc.args...)...)
		if code != 2 || stdout != "" || !strings.Contains(stderr, tc.want) {
			t.Errorf("%v: exit code %d, stdout %q, stderr %q; want %q", tc.args, code, stdout, stderr, tc.want)
		}
	}
	code, stdout, stderr := purser(t, []string{"PURSER_DATABASE_MAIN=" + dbtest.EmptyDSN(t)}, "gc", "status")
	if code != 1 || stdout != "" || stderr != "purser: the database has no tables of Purser: correct database.main or data_dir, or make them with \"purser migrate up\"\n" {
		t.Errorf("without a schema: exit code %d, stdout %q, stderr %q", code, stdout, stderr)
	}
}

func TestGCRetry(t *testing.T) {
	t.Parallel()
	g := newGarbage(t)
	same(t, g.run("gc", "retry"), "There are no failed reviews.\n")
	g.exec("UPDATE gc_blob_review_queue SET set_aside_at = now(), review_count = 10")
	g.exec("UPDATE gc_manifest_review_queue SET set_aside_at = now(), review_count = 10")
	same(t, g.run("gc", "retry"), "Reviews of 1 manifest and 2 blobs are due again.\n")
	same(t, g.run("gc", "retry", "-o", "json"), "{\n  \"manifests\": 0,\n  \"blobs\": 0\n}\n")
}

// The test runs commands for operators. Those that change something or run a check must
// write an audit log entry that names the command; those that only show something must not.
func TestCommandsAreLogged(t *testing.T) {
	t.Parallel()
	g := newGarbage(t)
	g.run("gc", "status")
	g.run("gc", "run", "--dry-run")
	g.run("gc", "run")
	g.run("gc", "retry")
	g.run("check", "--deep")
	g.run("loosefk", "status")
	g.run("loosefk", "install", "--sql")
	g.run("loosefk", "run")
	g.run("loosefk", "fix-default-partition")
	rows, err := g.db.Pool.Query(t.Context(), `
		SELECT concat_ws(' ', kind, user_agent || ':', detail) FROM auditlog WHERE user_agent LIKE 'purser %' ORDER BY id`)
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	same(t, strings.Join(got, "\n"), `run_gc purser gc run: {"dry_run": true}
run_gc purser gc run: {"dry_run": false}
retry_gc purser gc retry:
run_check purser check: {"deep": true, "force": false, "repair": false}
run_loose_foreign_keys purser loosefk run:
run_loose_foreign_keys purser loosefk fix-default-partition:`)
}

const drySays = "A dry run can't tell what comes after: deleting manifests queues their blobs, children and\n" +
	"referrers for reviews of their own, after their delays. It doesn't delete pending deletions either.\n"

func TestGCRun(t *testing.T) {
	t.Parallel()
	g := newGarbage(t)
	before := g.run("gc", "status", "-o", "json")
	const header = "KIND            SIZE  WHY                   WHAT\n"
	manifest := "manifest       273 B  manifest_upload       library/app@" + g.untagged.String() + "\n"
	same(t, g.run("gc", "run", "--dry-run"), header+manifest+
		"blob            17 B  blob_upload           "+g.unused.String()+
		"\nA run would delete 1 manifest of 1 reviewed, and 1 blob (17 B) of 2.\n"+drySays)
	same(t, g.run("gc", "run", "--dry-run", "--limit", "1"), header+manifest+
		"… and 1 more: --limit 0 lists all.\nA run would delete 1 manifest of 1 reviewed, and 1 blob (17 B) of 2.\n"+drySays)
	var report gcReport
	if err := json.Unmarshal([]byte(g.run("gc", "run", "--dry-run", "-o", "json", "--limit", "1")), &report); err != nil {
		t.Fatal(err)
	}
	if !report.DryRun || !report.Complete || report.Bytes != 17 || len(report.Found) != 1 || report.Found[0].Digest != g.untagged {
		t.Errorf("the dry run reports %+v", report)
	}
	after := g.run("gc", "status", "-o", "json")
	counts := regexp.MustCompile(`(?m)^.*("as_of"|_seconds).*$`)
	if before, after := counts.ReplaceAllString(before, ""), counts.ReplaceAllString(after, ""); before != after {
		t.Errorf("dry runs made\n%s\nof\n%s", after, before)
	}

	same(t, g.run("gc", "run"), `
Reviewed 1 manifest, deleted 1; reviewed 2 blobs, deleted 1.
Deleted 1 object from the store: reclaimed 17 B.
To be deleted once more after http.max_request_time, in case a request wrote late: 1 object.
Nothing is left to do now. What lost its last reference may wait for its delay: see "purser gc status".
`[1:])
	for what, d := range map[string]oci.Digest{"library/app@": g.untagged, "": g.unused} {
		if code, stdout, stderr := purser(t, g.environ, "gc", "explain", what+d.String()); code != 3 {
			t.Errorf("%s%s is still there: %s%s", what, d, stdout, stderr)
		}
	}
	g.run("gc", "explain", "library/app@"+g.tagged.String())
	if left, err := filepath.Glob(filepath.Join(g.store, "objects", "*", "*")); err != nil || len(left) != 1 {
		t.Errorf("%q are stored (%v), want the configuration", left, err)
	}
	same(t, g.run("gc", "run", "-o", "json"), `
{
  "dry_run": false,
  "complete": true,
  "manifests_reviewed": 0,
  "manifests_deleted": 0,
  "blobs_reviewed": 0,
  "blobs_deleted": 0,
  "objects": 0,
  "bytes": 0,
  "failed": 0,
  "kept": 0,
  "kept_bytes": 0,
  "second_sweeps": 1,
  "due": 0
}
`[1:])
}

// stopAt is a writer that ends a context at the first write.
type stopAt struct {
	bytes.Buffer
	stop context.CancelFunc
}

func (s *stopAt) Write(b []byte) (int, error) {
	s.stop()
	return s.Buffer.Write(b)
}

func TestGCRunInterrupted(t *testing.T) {
	t.Parallel()
	g := newGarbage(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	f := command.Text
	var out strings.Builder
	told := &stopAt{stop: cancel}
	r := &gcRun{format: &f, out: &out, progress: command.NewProgressLine(told), batch: 1}
	r.progress.Every = 0
	cfg, err := config.Load("", g.environ)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.run(ctx, cfg, gc.New(gc.Options{Catalog: g.catalog, DB: g.db}), g.db); err == nil || !strings.HasPrefix(err.Error(), "interrupted: ") {
		t.Errorf("error %v, want that it was interrupted", err)
	}
	// The writer `told` cancels the run's context when the run first shows its progress. By
	// then the run has reviewed its first batch, a single manifest.
	same(t, out.String(), "Reviewed 1 manifest, deleted 1; reviewed 0 blobs, deleted 0.\nDeleted 0 objects from the store: reclaimed 0 B.\n")
	if !strings.Contains(told.String(), "reviewed 1, 2 left; deleted 1 manifest, 0 blobs; reclaimed 0 B\n") {
		t.Errorf("of the progress it told %q", told.String())
	}
	if r.report.Complete {
		t.Error("an interrupted run is called complete")
	}
}

func TestProgressText(t *testing.T) {
	t.Parallel()
	m := measured(gc.Progress{ManifestsReviewed: 1000, BlobsReviewed: 2000, BlobsDeleted: 5, Bytes: 1 << 20, Due: 9000})
	if want := "reviewed 3,000, 9,000 left; deleted 0 manifests, 5 blobs; reclaimed 1.0 MiB"; m.Text != want || m.Share != 0.25 {
		t.Errorf("it says %q at %v, want %q", m.Text, m.Share, want)
	}
}
