package management_test

import (
	"context"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// dueNow makes all rows of the review queues due.
func (r *registry) dueNow(t *testing.T) {
	t.Helper()
	r.Exec(t, "UPDATE gc_blob_review_queue SET review_after = now()")
	r.Exec(t, "UPDATE gc_manifest_review_queue SET review_after = now()")
}

// managedRun is the API's answer about a run of any kind.
type managedRun struct {
	ID, State, Error string
	StartedAt        time.Time  `json:"started_at"`
	EndedAt          *time.Time `json:"ended_at"`
	DryRun           bool       `json:"dry_run"`
	Progress         struct {
		ManifestsDeleted int64 `json:"manifests_deleted"`
		BlobsDeleted     int64 `json:"blobs_deleted"`
		Objects, Bytes   int64
		Share            float64
	}
	FindingsTotal int64 `json:"findings_total"`
	Findings      []struct {
		Kind, Repository, Event, Problem string
		Digest                           oci.Digest
		Size                             int64
		Repaired                         bool
	}
	Summary *struct {
		Objects, Blobs, Hashed int64
		Problems               map[string]struct{ Count, Repaired int64 }
	}
}

// begin starts a run at path.
func (r *registry) begin(t *testing.T, path, body string) managedRun {
	t.Helper()
	var run managedRun
	a := r.Manage(t, "POST", path, body).Into(t, 202, &run)
	if run.ID == "" || run.StartedAt.IsZero() || a.Header.Get("Location") != "/api/v1"+path+"/"+run.ID {
		t.Fatalf("started: %s, Location %q", a.Content, a.Header.Get("Location"))
	}
	return run
}

// ended waits until a run has ended.
func (r *registry) ended(t *testing.T, path, id string) (run managedRun) {
	t.Helper()
	eventually(t, "the end of the run", func() bool {
		run = managedRun{}
		r.Manage(t, "GET", path+"/"+id, "").Into(t, 200, &run)
		return run.State != "running"
	})
	if run.EndedAt == nil || run.EndedAt.Before(run.StartedAt) {
		t.Errorf("it ended at %v and began at %v", run.EndedAt, run.StartedAt)
	}
	return run
}

func TestAPIRestoresTags(t *testing.T) {
	t.Parallel()
	r := setup(t)
	one, two := r.Simple(t, "a/b/c", 1, nil), r.Simple(t, "a/b/c", 2, nil)
	first, second := r.Put(t, "a/b/c", "v1", one), r.Put(t, "a/b/c", "v2", two)
	points := func(tag string, d oci.Digest) {
		t.Helper()
		r.Do(t, "GET", "/v2/a/b/c/manifests/"+tag, "").Want(t, 200, "", "Docker-Content-Digest", d.String())
	}
	points("v1", first)
	r.Do(t, "DELETE", "/v2/a/b/c/manifests/v1", "").Want(t, 202, "")
	r.Do(t, "GET", "/v2/a/b/c/manifests/v1", "").Want(t, 404, oci.ManifestUnknown)

	a := r.Manage(t, "POST", "/repository/a/b/c/tag/v1/restore", encode(t, object{"manifest_digest": first}))
	if a.StatusCode != 200 || strings.TrimSpace(string(a.Content)) != "{}" {
		t.Errorf("restored: %d %s, want 200 {}", a.StatusCode, a.Content)
	}
	points("v1", first)
	// As in Quay, a request to restore a tag may have members that the API doesn't know, and it
	// moves the tag if the tag exists.
	r.Manage(t, "POST", "/repository/a%2Fb%2Fc/tag/v1/restore", encode(t, object{"manifest_digest": second, "image": "x"})).
		Into(t, 200, new(any))
	points("v1", second)
	points("v2", second)

	r.Do(t, "DELETE", "/v2/a/b/c/manifests/"+second.String(), "").Want(t, 202, "")
	r.Manage(t, "POST", "/repository/a/b/c/tag/v2/restore", encode(t, object{"manifest_digest": second})).
		Refused(t, 404, "not_found", "has been deleted since")
}

func TestAPICollects(t *testing.T) {
	t.Parallel()
	r := setup(t)
	kept := r.Put(t, "kept", "v1", r.Simple(t, "kept", 1, nil))
	stray := r.Push(t, "kept", "stray")
	payload := r.Simple(t, "gone", 2, nil)
	gone := r.Put(t, "gone", digest(payload).String(), payload)
	r.dueNow(t)

	var status struct {
		Manifests, Blobs struct{ Due struct{ Count int } }
	}
	r.Manage(t, "GET", "/gc/status", "").Into(t, 200, &status)
	if status.Manifests.Due.Count != 1 || status.Blobs.Due.Count != 2 {
		t.Errorf("status: %+v; want a manifest and two blobs due", status)
	}
	for _, want := range []struct{ path, fate, sentence string }{
		{"/repository/kept/manifest/" + kept.String() + "/explain", "kept", "kept: tag v1"},
		{"/repository/gone/manifest/" + gone.String() + "/explain", "due", "nothing keeps it"},
		{"/gc/explain/" + stray.String(), "due", "nothing keeps it"},
		{"/gc/explain/" + digest("{}").String(), "kept", "uses it as configuration"},
	} {
		var e struct {
			Fate        string
			Explanation []string
		}
		r.Manage(t, "GET", want.path, "").Into(t, 200, &e)
		if e.Fate != want.fate || !strings.Contains(strings.Join(e.Explanation, "\n"), want.sentence) {
			t.Errorf("%s: %+v, want %+v", want.path, e, want)
		}
	}

	run := r.ended(t, "/gc/run", r.begin(t, "/gc/run", `{"dry_run": true}`).ID)
	if run.State != "succeeded" || !run.DryRun || run.FindingsTotal != 2 || len(run.Findings) != 2 || run.Progress.ManifestsDeleted != 1 {
		t.Fatalf("dry run: %+v; want the manifest and the stray blob found", run)
	}
	if m, b := run.Findings[0], run.Findings[1]; m.Kind != "manifest" || m.Repository != "gone" || m.Digest != gone || m.Size != int64(len(payload)) ||
		b.Kind != "blob" || b.Digest != stray || b.Size != 5 {
		t.Errorf("found: %+v", run.Findings)
	}
	r.Do(t, "GET", "/v2/gone/manifests/"+gone.String(), "").Want(t, 200, "")
	r.WantBlob(t, "kept", stray, "stray")
	r.dueNow(t) // the HEAD request has postponed the blob's review

	// The run must delete two objects: that of the blob `stray`, and the second object of the
	// configuration's blob. This blob was pushed twice, so its second object was recorded as a
	// pending deletion.
	run = r.ended(t, "/gc/run", r.begin(t, "/gc/run", "").ID)
	if run.State != "succeeded" || run.DryRun || run.Progress.ManifestsDeleted != 1 || run.Progress.BlobsDeleted != 1 ||
		run.Progress.Objects != 2 || run.Progress.Bytes != 5+2 || run.FindingsTotal != 0 {
		t.Errorf("run: %+v; want a manifest, a blob and two objects deleted", run)
	}
	r.Do(t, "GET", "/v2/kept/blobs/"+stray.String(), "").Want(t, 404, oci.BlobUnknown)
	r.Do(t, "GET", "/v2/kept/manifests/v1", "").Want(t, 200, "")
}

func TestAPIRetries(t *testing.T) {
	t.Parallel()
	r := setup(t)
	payload := r.Simple(t, "r", 1, nil)
	r.Put(t, "r", digest(payload).String(), payload)
	aside := func() {
		r.Exec(t, "UPDATE gc_blob_review_queue SET set_aside_at = now(), review_count = 9")
		r.Exec(t, "UPDATE gc_manifest_review_queue SET set_aside_at = now(), review_count = 9")
	}
	for body, want := range map[string][2]int64{
		"": {1, 1}, "{}": {1, 1}, `{"kind": ""}`: {1, 1}, `{"kind": "blob"}`: {1, 0}, `{"kind": "manifest"}`: {0, 1},
	} {
		aside()
		var got struct{ Blobs, Manifests int64 }
		r.Manage(t, "POST", "/gc/retry", body).Into(t, 200, &got)
		if got.Blobs != want[0] || got.Manifests != want[1] {
			t.Errorf("retry %s: %+v, want %v", body, got, want)
		}
	}
}

// heldStore is a store whose method Delete sends a value on the channel `begun`, and then
// blocks until its context ends.
type heldStore struct {
	blob.Store
	begun chan struct{}
}

func (h heldStore) Delete(ctx context.Context, _ []string) error {
	select {
	case h.begun <- struct{}{}:
	default:
	}
	<-ctx.Done()
	return ctx.Err()
}

// TestAPIRunsOneAtATime: a run of garbage collection is under way, and a client starts another
// run. The API must refuse that with 409. When a client sends a DELETE with the id of the run
// that is under way, the API must cancel this run. Closing the API must also cancel a run that
// is under way.
func TestAPIRunsOneAtATime(t *testing.T) {
	t.Parallel()
	held := heldStore{begun: make(chan struct{}, 1)}
	r := setup(t, func(o *servertest.Options) {
		held.Store = o.Store
		o.Store = held
		o.Management.GC.StorageTimeout = time.Hour
	})
	stray := r.Push(t, "r", "stray")
	r.dueNow(t)
	run := r.begin(t, "/gc/run", `{"dry_run": false}`)
	<-held.begun
	var seen managedRun
	r.Manage(t, "GET", "/gc/run/"+run.ID, "").Into(t, 200, &seen)
	if seen.State != "running" || seen.EndedAt != nil || seen.Progress.BlobsDeleted != 1 {
		t.Errorf("while it runs: %+v; want a blob deleted", seen)
	}
	var conflict struct{ Details struct{ Run string } }
	r.Manage(t, "POST", "/gc/run", `{"dry_run": true}`).Refused(t, 409, "invalid_request", run.ID).Into(t, 409, &conflict)
	if conflict.Details.Run != run.ID {
		t.Errorf("refused because of run %q, want %q", conflict.Details.Run, run.ID)
	}
	check := r.begin(t, "/check", "") // a run of another kind may start
	r.ended(t, "/check", check.ID)

	r.Manage(t, "DELETE", "/gc/run/"+run.ID, "").Into(t, 202, &seen)
	if got := r.ended(t, "/gc/run", run.ID); got.State != "cancelled" || got.Error != "" {
		t.Errorf("cancelled: %+v", got)
	}
	r.Manage(t, "DELETE", "/gc/run/"+run.ID, "").Into(t, 202, &seen)
	if seen.State != "cancelled" {
		t.Errorf("cancelled again: %+v", seen)
	}

	r.Exec(t, "UPDATE gc_doomed_objects SET delete_after = now()")
	run = r.begin(t, "/gc/run", "")
	<-held.begun
	r.Management().Close(t.Context())
	r.Manage(t, "GET", "/gc/run/"+run.ID, "").Into(t, 200, &seen)
	if seen.State != "cancelled" {
		t.Errorf("after the end of the server: %+v", seen)
	}
	r.Manage(t, "POST", "/gc/run", "").Refused(t, 503, "unavailable", "stopping")
	r.Do(t, "GET", "/v2/r/blobs/"+stray.String(), "").Want(t, 404, oci.BlobUnknown)
}

func TestAPIChecks(t *testing.T) {
	t.Parallel()
	r := setup(t)
	whole, torn := r.Push(t, "r", "whole"), r.Push(t, "r", "torn")
	key := r.Key(t, torn)
	servertest.Remove(t, filepath.Join(r.Dir, "objects", key[:2], key))

	run := r.ended(t, "/check", r.begin(t, "/check", `{"deep": true}`).ID)
	if run.State != "succeeded" || run.FindingsTotal != 1 || len(run.Findings) != 1 || run.Summary == nil || run.Progress.Share != 1 {
		t.Fatalf("check: %+v; want one finding and a summary", run)
	}
	if f := run.Findings[0]; f.Problem != "missing" || f.Digest != torn || f.Repaired {
		t.Errorf("found %+v; want the torn blob's object missing", f)
	}
	if run.Summary.Blobs != 2 || run.Summary.Hashed != 1 || run.Summary.Problems["missing"].Count != 1 {
		t.Errorf("summary: %+v", run.Summary)
	}
	run = r.ended(t, "/check", r.begin(t, "/check", `{"repair": true}`).ID)
	if run.Summary == nil || run.Summary.Problems["missing"].Repaired != 1 {
		t.Fatalf("repair: %+v; want it repaired", run)
	}
	r.Do(t, "GET", "/v2/r/blobs/"+torn.String(), "").Want(t, 404, oci.BlobUnknown)
	r.WantBlob(t, "r", whole, "whole")
}

// TestAPIRunOfAnotherReplica: a client asks one replica for a run that another replica has
// started. The answer must be 404 with a text that mentions other replicas, since each replica
// knows only its own runs.
func TestAPIRunOfAnotherReplica(t *testing.T) {
	t.Parallel()
	a := setup(t)
	b := replica(t, a.DSN, a.Dir)
	run := a.begin(t, "/gc/run", `{"dry_run": true}`)
	a.ended(t, "/gc/run", run.ID)
	for _, method := range []string{http.MethodGet, http.MethodDelete} {
		b.Manage(t, method, "/gc/run/"+run.ID, "").Refused(t, 404, "not_found", "another replica")
	}
}
