package loosefk

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
)

// A database with children can't be reached. The worker must clean up the children in the
// other databases, and keep the deleted record pending until it has reached all databases.
func TestDatabaseIsAway(t *testing.T) {
	t.Parallel()
	pool := newPool(t, "CREATE TABLE projects (id bigint PRIMARY KEY)", "CREATE TABLE issues (project_id bigint)", "CREATE INDEX ON issues (project_id)")
	other := newPool(t, "CREATE TABLE builds (project_id bigint)", "CREATE INDEX ON builds (project_id)")
	nowhere, err := pgxpool.New(t.Context(), "postgres://u@127.0.0.1:1/none?connect_timeout=1")
	must(t, err)
	t.Cleanup(nowhere.Close)
	main := install(t, pool, "projects")
	defs := parse(t, `
builds: [{table: projects, column: project_id, on_delete: async_delete}]
issues: [{table: projects, column: project_id, on_delete: async_delete}]`)
	exec(t, pool, "INSERT INTO projects VALUES (1), (2)")
	exec(t, pool, "INSERT INTO issues VALUES (1), (1), (2)")
	exec(t, other, "INSERT INTO builds VALUES (1), (2)")
	exec(t, pool, "DELETE FROM projects WHERE id = 1")

	o := Options{Definitions: defs, SecondLook: -1}
	whole := newWorker(t, o, main, Database{Name: "ci", Pool: other, Tables: []string{"builds"}})
	o.Databases, o.Log = Databases{main, {Name: "ci", Pool: nowhere, Tables: []string{"builds"}}}, whole.opt.Log
	w, err := New(o)
	must(t, err)
	r, err := w.RunOnce(t.Context(), "main")
	if err == nil || !strings.Contains(err.Error(), "database ci can't be reached") {
		t.Errorf("the run doesn't say which database is away: %v", err)
	}
	if r.Deletes != 2 || r.Processed != 0 {
		t.Errorf("the run says %+v, want two deletes and no record done", r)
	}
	wantRows(t, pool, "SELECT project_id FROM issues", int64(2))
	for range o.MaxAttempts + 4 { // an unreachable database never postpones a parent
		if _, err := w.RunOnce(t.Context(), "main"); err == nil {
			t.Error("a run says nothing of the database that is away")
		}
	}
	if r := runOnce(t, whole, "main"); r.Deletes != 1 || r.Processed != 1 {
		t.Errorf("when it has come, the run says %+v", r)
	}
	wantRows(t, other, "SELECT project_id FROM builds", int64(2))
}
