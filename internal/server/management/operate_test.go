package management_test

import (
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// TestOperatorsSeeMore: the operations that the overview needs tell what is stored, what was
// reclaimed by day, the runs of the replica, and the configuration; others may not ask.
func TestOperatorsSeeMore(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *servertest.Options) {
		o.Configure("gc.workers", "5", "env PURSER_GC_WORKERS")
	})
	r.Put(t, "acme/app", "v1", r.Simple(t, "acme/app", 1, nil))
	r.Push(t, "acme/app", "12345")
	var status struct {
		Stored struct {
			Blobs struct {
				Count int64
				Exact bool
			}
			Bytes int64
		}
	}
	r.Manage(t, "GET", "/gc/status", "").Into(t, 200, &status)
	if s := status.Stored; s.Blobs.Count != 2 || !s.Blobs.Exact || s.Bytes != 2+5 {
		t.Errorf("stored: %+v", s)
	}
	r.Exec(t, `INSERT INTO gc_activity (minute, blobs_deleted, objects_swept, bytes_swept) VALUES
		(date_trunc('day', now(), 'UTC'), 1, 1, 10), (date_trunc('day', now(), 'UTC') - interval '1 minute', 2, 2, 20),
		(date_trunc('day', now(), 'UTC') - interval '2 minutes', 3, 3, 9223372036854775800), (now() - interval '31 days', 9, 9, 9)`)
	var activity struct {
		Days []struct {
			Day          time.Time
			Blobs, Bytes int64
		}
	}
	r.Manage(t, "GET", "/gc/activity", "").Into(t, 200, &activity)
	today := time.Now().UTC().Truncate(24 * time.Hour)
	if d := activity.Days; len(d) != 2 || d[0].Blobs != 5 || d[0].Bytes != 9223372036854775807 || d[1].Bytes != 10 || d[1].Day.Before(today.AddDate(0, 0, -1)) {
		t.Errorf("activity: %+v", d)
	}
	r.Manage(t, "GET", "/gc/activity?days=1", "").Into(t, 200, &activity)
	if len(activity.Days) != 1 {
		t.Errorf("activity of a day: %+v", activity.Days)
	}
	r.Manage(t, "GET", "/gc/activity?days=32", "").Refused(t, 400, "invalid_request", "days")

	first := r.ended(t, "/gc/run", r.begin(t, "/gc/run", `{"dry_run": true}`).ID)
	second := r.ended(t, "/gc/run", r.begin(t, "/gc/run", "").ID)
	var list struct{ Runs []api.RunStatus }
	r.Manage(t, "GET", "/gc/run", "").Into(t, 200, &list)
	if len(list.Runs) != 2 || list.Runs[0].ID != second.ID || list.Runs[1].ID != first.ID || list.Runs[0].State != api.RunSucceeded {
		t.Errorf("runs: %+v", list.Runs)
	}
	for _, path := range []string{"/check", "/loosefk/run"} {
		r.Manage(t, "GET", path, "").Into(t, 200, &list)
		if list.Runs == nil || len(list.Runs) != 0 {
			t.Errorf("%s: %+v", path, list.Runs)
		}
	}
	a := r.Manage(t, "GET", "/system", "").WantStatus(t, 200)
	if text := string(a.Content); !strings.Contains(text, `{"name":"gc.workers","value":"5","source":"env PURSER_GC_WORKERS"}`) || !strings.Contains(text, `"replicas":[{"id":"`) {
		t.Errorf("system: %s", text)
	}

	denied := setup(t, denying)
	for _, path := range []string{"/gc/activity", "/gc/run", "/check", "/loosefk/run", "/system"} {
		denied.Manage(t, "GET", path, "").Refused(t, 403, "insufficient_scope", "^operate of <>$")
	}
}
