package e2e

import (
	"encoding/json"
	"errors"
	"net/http"
	"time"
)

// manage sends a request to the management API. It fails the test unless the answer has the
// status `want`, and decodes the answer's body into `answer`.
func (r *registry) manage(method, path string, body, answer any, want int) {
	r.t.Helper()
	q := request{method: method, path: "/api/v1" + path, want: want}
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			r.t.Fatal(err)
		}
		q.body, q.header = b, map[string]string{"Content-Type": "application/json"}
	}
	a, err := r.API().do(r.t.Context(), q)
	if err != nil {
		r.t.Fatal(err)
	}
	if answer == nil {
		return
	}
	if err := json.Unmarshal(a.body, answer); err != nil {
		r.t.Fatalf("%s %s: %s: %v", method, path, a.body, err)
	}
}

// collect starts a run of garbage collection (a dry run if `dry` is true), waits until it has
// ended and returns its result. The run must succeed.
func (r *registry) collect(dry bool) (run gcRun) {
	r.t.Helper()
	r.manage("POST", "/gc/run", map[string]bool{"dry_run": dry}, &run, http.StatusAccepted)
	eventually(r.t, time.Minute, func() error {
		r.manage("GET", "/gc/run/"+run.ID, nil, &run, http.StatusOK)
		if run.State == "running" {
			return errors.New("it still runs")
		}
		return nil
	})
	if run.State != "succeeded" {
		r.t.Fatalf("garbage collection: %+v", run)
	}
	return run
}

type gcRun struct {
	ID, State, Error string
	Progress         struct {
		ManifestsDeleted int64 `json:"manifests_deleted"`
		BlobsDeleted     int64 `json:"blobs_deleted"`
	}
	Findings []struct{ Kind, Repository, Digest string }
}
