package e2e

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/opencontainers/go-digest"
)

// operator runs "purser gc" commands for the registry `r`, whether its server runs or not.
type operator struct {
	t testing.TB
	r *registry
}

// gc runs "purser gc" with these arguments. It must succeed; gc returns its output.
func (o operator) gc(args ...string) string {
	o.t.Helper()
	code, out := o.try(args...)
	if code != 0 {
		o.t.Fatalf("purser gc %s exited with %d:\n%s", strings.Join(args, " "), code, out)
	}
	return out
}

func (o operator) try(args ...string) (int, string) {
	o.t.Helper()
	return purser(o.t, o.r.opt.env, append([]string{"gc", "--data-dir", o.r.opt.dataDir}, args...)...)
}

// gcNumbers has those members of "purser gc status -o json" that the tests use.
type gcNumbers struct {
	Manifests, Blobs struct {
		Due      struct{ Count int }
		SetAside struct{ Count int } `json:"set_aside"`
	}
	LastHour struct{ Manifests, Blobs int } `json:"last_hour"`
}

func (o operator) status() (s gcNumbers) {
	o.t.Helper()
	out := o.gc("status", "-o", "json")
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		o.t.Fatalf("%v in:\n%s", err, out)
	}
	return s
}

// says fails the test unless the command succeeds and its output contains every text in `want`.
func (o operator) says(want []string, args ...string) {
	o.t.Helper()
	out := o.gc(args...)
	for _, text := range want {
		if !strings.Contains(out, text) {
			o.t.Errorf("purser gc %s says nothing of %q:\n%s", strings.Join(args, " "), text, out)
		}
	}
}

// An operator uses the commands to look at garbage, to see what would be deleted, and to
// collect it. Meanwhile a server runs that does no reviews itself.
func TestGCCommands(t *testing.T) {
	beginOwn(t)
	r := startRegistry(t, options{env: []string{
		"PURSER_GC_REVIEW_MANIFESTS=false", "PURSER_GC_REVIEW_BLOBS=false", "PURSER_GC_REVIEW_AFTER=0s",
	}})
	o, a, ctx := operator{t, r}, r.API(), t.Context()
	kept, err := a.pushImage(ctx, "library/app", "v1", randomBytes(1<<10))
	if err != nil {
		t.Fatal(err)
	}
	layer := randomBytes(1 << 20)
	gone, err := a.pushImage(ctx, "library/app", "old", layer)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.do(ctx, request{method: "DELETE", path: "/v2/library/app/manifests/old", want: http.StatusAccepted}); err != nil {
		t.Fatal(err)
	}
	blob := digest.FromBytes(layer).String()
	goneRef := "library/app@" + gone.String()

	if s := o.status(); s.Manifests.Due.Count != 1 || s.Blobs.Due.Count != 4 {
		t.Errorf("due are %+v, want one manifest and four blobs", s)
	}
	o.says([]string{"QUEUE", "RECLAIMED"}, "status")
	o.says([]string{"kept: tag v1 of library/app points to it"}, "explain", "library/app@"+kept.String())
	o.says([]string{"is due for review", "because a tag of it was deleted", "nothing keeps it, so it will be deleted"}, "explain", goneRef)
	o.says([]string{"kept: " + goneRef + " uses it as layer", "1.0 MiB"}, "explain", blob)
	o.says([]string{"kept: tag v1 of library/app points to it"}, "explain", "library/app:v1")

	o.setAside()
	if s := o.status(); s.Manifests.SetAside.Count != 1 || s.Manifests.Due.Count != 0 {
		t.Errorf("set aside are %+v, want one manifest", s)
	}
	o.says([]string{"is not tried again", "no luck", "purser gc retry"}, "explain", goneRef)
	o.says([]string{"Reviews of 1 manifest and 0 blobs are due again"}, "retry")

	o.says([]string{goneRef, "tag_delete", "would delete 1 manifest of 1 reviewed, and 0 blobs", "can't tell"}, "run", "--dry-run")
	a.checkWhole(t, "library/app", gone.String(), gone.String())
	if s := o.status(); s.Manifests.Due.Count != 1 || s.LastHour.Manifests != 0 {
		t.Errorf("after a dry run: %+v, want one manifest due and none deleted", s)
	}

	// The review delay is zero. So when the run has deleted the image, the reviews of the
	// image's blobs are due at once, and the same run does them.
	o.says([]string{"deleted 1; reviewed 4 blobs, deleted 2", "Nothing is left to do now."}, "run")
	if s := o.status(); s.Manifests.Due.Count+s.Blobs.Due.Count != 0 || s.LastHour.Manifests != 1 || s.LastHour.Blobs != 2 {
		t.Errorf("after a run: %+v, want nothing due, one manifest and two blobs deleted", s)
	}
	for _, what := range []string{goneRef, blob} {
		code, out := o.try("explain", what)
		refused(t, code, out, "is not known")
	}
	// The server must notice that another process has deleted the image, although the image
	// was in the server's caches.
	eventually(t, time.Minute, func() error {
		_, err := a.do(ctx, request{method: "GET", path: "/v2/library/app/manifests/" + gone.String(), want: http.StatusNotFound})
		return err
	})
	a.checkWhole(t, "library/app", "v1", kept.String())
}

// setAside marks the only queued review of a manifest as failed, as a reviewer does after too
// many failures. No worker tries such a review again.
func (o operator) setAside() {
	o.t.Helper()
	code, out := purser(o.t, nil, "postgres", "url", "--data-dir", o.r.opt.dataDir)
	if code != 0 {
		o.t.Fatalf("purser postgres url exited with %d:\n%s", code, out)
	}
	conn, err := pgx.Connect(o.t.Context(), strings.TrimSpace(out))
	if err != nil {
		o.t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(o.t.Context())) //nolint:errcheck // nothing is lost
	if _, err := conn.Exec(o.t.Context(),
		"UPDATE gc_manifest_review_queue SET set_aside_at = now(), review_count = 10, last_error = 'no luck'"); err != nil {
		o.t.Fatal(err)
	}
}
