package loosefk

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/loosefk/internal/pg"
)

// A trigger keeps the worker from cleaning up the children of more parents than fit into
// a batch. The same run must still clean up the children of a parent after these.
func TestStuckParents(t *testing.T) {
	t.Parallel()
	pool := newPool(t, oneChild, `
		CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not this one'; END $$;
		CREATE TRIGGER refuse BEFORE DELETE ON builds FOR EACH ROW WHEN (OLD.project_id <= 120) EXECUTE FUNCTION refuse()`)
	w := newWorker(t, Options{Definitions: parse(t, oneDefinition), Batch: 50}, install(t, pool, "projects"))
	families(t, pool, 120)
	family(t, pool, 121, 3)
	r, err := w.RunOnce(t.Context(), "main")
	if !pg.IsState(err, "P0001") {
		t.Errorf("the run ends with %v", err)
	}
	if r.Processed != 1 || r.Deletes != 3 || r.Incremented != 120 || r.Records != 121 {
		t.Errorf("the run says %+v", r)
	}
	exec(t, pool, "DROP TRIGGER refuse ON builds")
	if r := runOnce(t, w, "main"); r.Processed != 120 {
		t.Errorf("the run after it says %+v", r)
	}
}

// A client keeps the children of 200 deleted parents locked. A run must wait for the locked
// children only for a part of its time, and clean up the children of another parent. It must tell
// of the 200 parents in one line of the log.
func TestHeldParents(t *testing.T) {
	t.Parallel()
	pool := newPool(t, oneChild)
	var log bytes.Buffer
	w := newWorker(t, Options{Definitions: parse(t, oneDefinition), Batch: 50, Log: slog.New(slog.NewTextHandler(&log, nil))}, install(t, pool, "projects"))
	families(t, pool, 200)
	family(t, pool, 201, 3)
	tx, err := pool.Begin(t.Context())
	must(t, err)
	exec(t, tx, "SELECT FROM builds WHERE project_id <= 200 FOR UPDATE")
	if r := runOnce(t, w, "main"); r.Processed != 1 || r.Deletes != 3 || r.Incremented != 200 || r.OverLimit != "" {
		t.Errorf("the run says %+v", r)
	}
	if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "left the children of deleted parents") || !strings.Contains(text, " parents=200 ") {
		t.Errorf("the log isn't one line of 200 parents:\n%.2000s", text)
	}
	must(t, tx.Rollback(t.Context()))
	if r, err := w.Drain(t.Context(), "projects", nil); err != nil || r.Processed != 200 {
		t.Errorf("draining says %+v, %v", r, err)
	}
}

// families inserts the parents 1 to n with one child each, and deletes the parents only.
func families(t *testing.T, db DB, n int) {
	t.Helper()
	exec(t, db, "INSERT INTO projects SELECT generate_series(1, $1::int)", n)
	exec(t, db, "INSERT INTO builds (project_id) SELECT generate_series(1, $1::int)", n)
	exec(t, db, "DELETE FROM projects WHERE id <= $1", n)
}

// A parent was postponed because it has many children. Each run in which nothing else is
// due must continue with it; other runs must skip it.
func TestHeavyParentGoesOn(t *testing.T) {
	t.Parallel()
	pool := newPool(t, oneChild)
	w := newWorker(t, Options{Definitions: parse(t, oneDefinition), MaxDeletes: 40, DeleteLimit: 8, Batch: 10}, install(t, pool, "projects"))
	family(t, pool, 1, 300)
	for range 3 {
		runOnce(t, w, "main")
	}
	wantRows(t, pool, attempts, "1 1 3 true")
	for id := 2; id < 30; id++ { // more than a run deletes
		family(t, pool, id, 2)
	}
	if r := runOnce(t, w, "main"); r.Deletes != 40 {
		t.Errorf("with others due the run says %+v", r)
	}
	wantRows(t, pool, "SELECT count(*)::int FROM builds WHERE project_id = 1", 180)
	// A record that an operator has postponed must stay as it is until its time.
	family(t, pool, 50, 2)
	exec(t, pool, "UPDATE loose_foreign_keys_deleted_records SET consume_after = now() + interval '1 minute' WHERE primary_key_value = 50")
	if r := runOnce(t, w, "main"); r.Deletes != 40 || r.Incremented+r.Rescheduled != 0 {
		t.Errorf("with some others due the run says %+v", r)
	}
	wantRows(t, pool, "SELECT DISTINCT project_id::int FROM builds ORDER BY 1", 1, 50)
	for runs := 1; query[int](t, pool, "SELECT count(*)::int FROM builds WHERE project_id = 1")[0] > 0; runs++ {
		if r := runOnce(t, w, "main"); r.Deletes == 0 || runs > 10 {
			t.Fatalf("with nothing else due run %d says %+v", runs, r)
		}
	}
	wantRows(t, pool, "SELECT project_id::int FROM builds", 50, 50)
	runOnce(t, w, "main")
	wantRows(t, pool, "SELECT primary_key_value::int FROM loose_foreign_keys_deleted_records WHERE status = 1", 50)
}

// A run continues with a postponed parent of many children, and gets stuck at locked
// children. The parent's record must then wait for the time to which it was postponed.
func TestHeavyParentGetsStuck(t *testing.T) {
	t.Parallel()
	pool := newPool(t, oneChild)
	w := newWorker(t, Options{Definitions: parse(t, oneDefinition), MaxDeletes: 40, DeleteLimit: 8, LockTimeout: 10 * time.Millisecond}, install(t, pool, "projects"))
	family(t, pool, 1, 200)
	for range 3 {
		runOnce(t, w, "main")
	}
	tx, err := pool.Begin(t.Context())
	must(t, err)
	exec(t, tx, "SELECT FROM builds FOR UPDATE")
	if r := runOnce(t, w, "main"); r.Records != 1 || r.Deletes != 0 {
		t.Errorf("while its children are held the run says %+v", r)
	}
	must(t, tx.Rollback(t.Context()))
	wantRows(t, pool, attempts, "1 1 0 true")
	if r := runOnce(t, w, "main"); r.Records != 0 {
		t.Errorf("the run after it says %+v", r)
	}
}
