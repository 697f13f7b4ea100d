package loosefk

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/purser-registry/purser/loosefk/internal/testdb"
)

func TestRunOnce(t *testing.T) {
	t.Parallel()
	pool := newPool(t, testdb.Projects)
	w := newWorker(t, Options{Definitions: parse(t, testdb.ProjectsDefinitions)}, install(t, pool, "projects"))
	exec(t, pool, "DELETE FROM projects WHERE id IN (1, 3)")
	wantRows(t, pool, "SELECT fully_qualified_table_name || ' ' || primary_key_value || ' ' || status FROM loose_foreign_keys_deleted_records ORDER BY id",
		"public.projects 1 1", "public.projects 3 1")
	r := runOnce(t, w, "main")
	if r.Records != 2 || r.Processed != 2 || r.Deletes != 2000 || r.Updates != 20+200 || r.OverLimit != "" || r.Incremented != 0 {
		t.Errorf("the run says %+v", r)
	}
	wantRows(t, pool, "SELECT DISTINCT project_id FROM pipelines ORDER BY 1", 2, 4)
	wantRows(t, pool, "SELECT COALESCE(project_id, 0) || ':' || count(*) FROM requests GROUP BY project_id ORDER BY 1", "0:20", "2:10", "4:10")
	wantRows(t, pool, "SELECT project_id || ':' || kind || ':' || count(*) FROM packages WHERE status = 4 GROUP BY project_id, kind ORDER BY 1", "1:npm:100", "3:npm:100")
	wantRows(t, pool, "SELECT status FROM loose_foreign_keys_deleted_records", int16(2), int16(2))
	if r := runOnce(t, w, "main"); r.Records != 0 || r.Deletes != 0 {
		t.Errorf("a second run says %+v", r)
	}
}

// While one worker holds the lock of a parent table, a run of another worker must skip the
// table.
func TestWorkersShareParents(t *testing.T) {
	t.Parallel()
	pool := newPool(t, oneChild)
	db := install(t, pool, "projects")
	w := newWorker(t, Options{Definitions: parse(t, oneDefinition)}, db)
	family(t, pool, 1, 2)
	held, err := AdvisoryLock{}.TryRun(t.Context(), &db, "loose_foreign_keys/main/public.projects", func(context.Context) error {
		if r := runOnce(t, w, "main"); r.Locked != 1 || r.Records != 0 {
			t.Errorf("the run says %+v", r)
		}
		return nil
	})
	if err != nil || !held {
		t.Fatal(held, err)
	}
	if r := runOnce(t, w, "main"); r.Locked != 0 || r.Processed != 1 {
		t.Errorf("the run after it says %+v", r)
	}
}

// The context of a run ends while the run deletes children. The run must leave the deleted
// records unchanged.
func TestRunStops(t *testing.T) {
	t.Parallel()
	pool := newPool(t, oneChild, `
		CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(30); RETURN OLD; END $$;
		CREATE TRIGGER slow BEFORE DELETE ON builds FOR EACH ROW EXECUTE FUNCTION slow()`)
	w := newWorker(t, Options{Definitions: parse(t, oneDefinition), StatementTimeout: time.Minute}, install(t, pool, "projects"))
	family(t, pool, 1, 2)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := w.RunOnce(ctx, "main")
		done <- err
	}()
	deadline := time.Now().Add(2 * time.Minute)
	for query[int](t, pool, "SELECT count(*)::int FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()")[0] == 0 {
		if time.Now().After(deadline) {
			t.Fatal("it never began")
		}
		time.Sleep(time.Millisecond)
	}
	cancel()
	select {
	case err := <-done:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("it ended with %v", err)
		}
	case <-time.After(2 * time.Minute):
		t.Fatal("it goes on")
	}
	wantRows(t, pool, attempts, "1 1 0 false")
}
