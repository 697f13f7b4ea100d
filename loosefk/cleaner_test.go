package loosefk

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/purser-registry/purser/loosefk/internal/pg"
)

const (
	oneChild = `
		CREATE TABLE projects (id bigint PRIMARY KEY);
		CREATE TABLE builds (id bigserial PRIMARY KEY, project_id bigint);
		CREATE INDEX ON builds (project_id)`
	oneDefinition = "builds: [{table: projects, column: project_id, on_delete: async_delete}]"

	attempts = "SELECT primary_key_value || ' ' || status || ' ' || cleanup_attempts || ' ' || (consume_after > now())::text FROM loose_foreign_keys_deleted_records ORDER BY 1"
)

// family inserts a parent with n children, and deletes the parent only.
func family(t *testing.T, pool *pgxpool.Pool, id, n int) {
	t.Helper()
	exec(t, pool, "INSERT INTO projects VALUES ($1)", id)
	exec(t, pool, "INSERT INTO builds (project_id) SELECT $1 FROM generate_series(1, $2)", id, n)
	exec(t, pool, "DELETE FROM projects WHERE id = $1", id)
}

// The worker must not process a deleted record before the time in its column consume_after.
func TestConsumeAfterFilters(t *testing.T) {
	t.Parallel()
	pool := newPool(t, oneChild)
	w := newWorker(t, Options{Definitions: parse(t, oneDefinition)}, install(t, pool, "projects"))
	family(t, pool, 1, 3)
	exec(t, pool, "UPDATE loose_foreign_keys_deleted_records SET consume_after = now() + interval '1 minute'")
	if r := runOnce(t, w, "main"); r.Records != 0 {
		t.Errorf("the run says %+v", r)
	}
	wantRows(t, pool, "SELECT count(*)::int FROM builds", 3)
}

// A deleted parent has more children than a run may delete. Its record must be postponed
// after three runs, and each of these runs must also finish another parent.
func TestHeavyParent(t *testing.T) {
	t.Parallel()
	pool := newPool(t, oneChild)
	w := newWorker(t, Options{Definitions: parse(t, oneDefinition), MaxDeletes: 40, DeleteLimit: 8, Batch: 10}, install(t, pool, "projects"))
	family(t, pool, 1, 1000)
	for run := range 3 {
		family(t, pool, 2+run, 2)
		r := runOnce(t, w, "main")
		if r.OverLimit != "deletes" || r.Processed != 1 || r.Deletes != 40 || r.Incremented+r.Rescheduled != 1 {
			t.Errorf("run %d says %+v", run, r)
		}
	}
	wantRows(t, pool, attempts, "1 1 3 true", "2 2 0 false", "3 2 0 false", "4 2 0 false")
	if age := query[time.Duration](t, pool, "SELECT consume_after - now() FROM loose_foreign_keys_deleted_records WHERE status = 1")[0]; age < 9*time.Minute || age > 10*time.Minute {
		t.Errorf("it is put off by %s, want 10 min", age)
	}
	r, err := w.Drain(t.Context(), "projects", nil)
	must(t, err)
	wantRows(t, pool, "SELECT count(*)::int FROM builds", 0)
	wantRows(t, pool, "SELECT count(*)::int FROM loose_foreign_keys_deleted_records WHERE status = 1", 0)
	if r.Deletes != 1000-3*38 {
		t.Errorf("draining says %+v", r)
	}
}

// A client keeps a child locked. A run must delete the other children, count an attempt for
// the record of the locked child's parent, and process other records.
func TestLockedChild(t *testing.T) {
	t.Parallel()
	pool := newPool(t, oneChild)
	w := newWorker(t, Options{Definitions: parse(t, oneDefinition), LockTimeout: 20 * time.Millisecond}, install(t, pool, "projects"))
	family(t, pool, 1, 5)
	family(t, pool, 2, 5)
	tx, err := pool.Begin(t.Context())
	must(t, err)
	exec(t, tx, "SELECT FROM builds WHERE id = (SELECT min(id) FROM builds WHERE project_id = 1) FOR UPDATE")
	r := runOnce(t, w, "main")
	if r.Deletes != 9 || r.Processed != 1 || r.Incremented != 1 {
		t.Errorf("the run says %+v", r)
	}
	wantRows(t, pool, attempts, "1 1 1 false", "2 2 0 false")
	must(t, tx.Rollback(t.Context()))
	if r := runOnce(t, w, "main"); r.Deletes != 1 || r.Processed != 1 {
		t.Errorf("the run after it says %+v", r)
	}
}

// If a DELETE times out, the worker must repeat it with fewer rows. If even one row times
// out, the run must count an attempt for the deleted record, and not mark it as processed.
func TestStatementTimeout(t *testing.T) {
	t.Parallel()
	pool := newPool(t, oneChild, `
		CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.02); RETURN OLD; END $$;
		CREATE TRIGGER slow BEFORE DELETE ON builds FOR EACH ROW EXECUTE FUNCTION slow()`)
	db := install(t, pool, "projects")
	defs := parse(t, oneDefinition)
	family(t, pool, 1, 20)
	w := newWorker(t, Options{Definitions: defs, StatementTimeout: 200 * time.Millisecond}, db) // long enough to delete 9 rows
	if r := runOnce(t, w, "main"); r.Deletes != 20 || r.Processed != 1 {
		t.Errorf("a run with room for some rows says %+v", r)
	}
	exec(t, pool, "CREATE OR REPLACE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(1); RETURN OLD; END $$")
	family(t, pool, 2, 2)
	w = newWorker(t, Options{Definitions: defs, StatementTimeout: 50 * time.Millisecond}, db)
	if r := runOnce(t, w, "main"); r.Deletes != 0 || r.Processed != 0 || r.Incremented != 1 {
		t.Errorf("a run without room for one says %+v", r)
	}
	wantRows(t, pool, attempts, "1 2 0 false", "2 1 1 false")
}

// If a definition doesn't fit the database, a run must fail and mark no record.
func TestWrongDefinitionMarksNothing(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"nothing: [{table: projects, column: project_id, on_delete: async_delete}]":                                           "there is no table public.nothing",
		"builds: [{table: projects, column: absent, on_delete: async_delete}]":                                                "has no column absent",
		oneDefinition + "\nprojects: [{table: none, column: id, on_delete: async_delete}]":                                    "there is no table public.none",
		"builds: [{table: projects, column: project_id, on_delete: update_column_to, target_column: id, target_value: x}]":    "invalid input syntax for type bigint",
		"builds: [{table: projects, column: project_id, on_delete: async_delete, conditions: [{column: id, value: y}]}]":      "invalid input syntax for type bigint",
		"builds: [{table: projects, column: project_id, on_delete: update_column_to, target_column: id, target_value: null}]": "is NOT NULL",
		"pg_catalog.pg_tables: [{table: projects, column: project_id, on_delete: async_delete}]":                              "is no table",
	} {
		pool := newPool(t, oneChild)
		w, err := New(Options{
			Databases: Databases{install(t, pool, "projects")}, Definitions: parse(t, text),
			Log: slog.New(slog.DiscardHandler),
		})
		must(t, err)
		family(t, pool, 1, 2)
		_, err = w.RunOnce(t.Context(), "main")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
		wantRows(t, pool, "SELECT status::int || ' ' || (SELECT count(*) FROM builds) FROM loose_foreign_keys_deleted_records", "1 2")
	}
}

// The worker must not process the deleted records of a parent table without the trigger.
func TestUntracked(t *testing.T) {
	t.Parallel()
	pool := newPool(t, oneChild)
	w := newWorker(t, Options{Definitions: parse(t, oneDefinition)}, install(t, pool, "projects"))
	family(t, pool, 1, 2)
	must(t, DefaultSchema.UntrackRecordDeletions(t.Context(), pool, "projects"))
	if r := runOnce(t, w, "main"); r.Records != 0 {
		t.Errorf("the run says %+v", r)
	}
	list, err := w.opt.Databases[0].Pending(t.Context())
	must(t, err)
	if len(list) != 1 || !list[0].Untracked || list[0].Count != 1 || list[0].Table != "public.projects" {
		t.Errorf("pending: %+v", list)
	}
	n, err := DefaultSchema.RemoveDeletedRecords(t.Context(), pool, "projects")
	must(t, err)
	if n != 1 {
		t.Errorf("%d leftovers were removed, want 1", n)
	}
	must(t, DefaultSchema.UntrackRecordDeletions(t.Context(), pool, "dropped_long_ago"))
}

// A client inserts a deleted parent again. The worker must keep the parent's children.
func TestParentIsBack(t *testing.T) {
	t.Parallel()
	pool := newPool(t, oneChild)
	w := newWorker(t, Options{Definitions: parse(t, oneDefinition)}, install(t, pool, "projects"))
	family(t, pool, 1, 3)
	family(t, pool, 2, 3)
	exec(t, pool, "INSERT INTO projects VALUES (1)")
	if r := runOnce(t, w, "main"); r.Processed != 2 || r.Deletes != 3 {
		t.Errorf("the run says %+v", r)
	}
	wantRows(t, pool, "SELECT DISTINCT project_id FROM builds", int64(1))
	// The DELETE of children itself must leave out children of parents that exist again.
	rs, _, err := lookUp(t.Context(), w.opt.Databases, w.opt.Definitions)
	must(t, err)
	_, n, err := rs[0].change(t.Context(), timeouts{time.Second, time.Second}, []parentKey{"1"}, 10, 10, false)
	if !pg.IsState(err, pg.StateDivisionByZero) || n != 0 {
		t.Errorf("%d children of a living parent were deleted: %v", n, err)
	}
	wantRows(t, pool, "SELECT count(*)::int FROM builds", 3)
}

// Two children in different partitions, without a primary key, have the same ctid. The
// worker must delete only the child whose parent was deleted.
func TestPartitionedChild(t *testing.T) {
	t.Parallel()
	pool := newPool(t, "CREATE TABLE projects (id bigint PRIMARY KEY)", `
		CREATE TABLE builds (project_id int, name text) PARTITION BY LIST (name);
		CREATE TABLE builds_a PARTITION OF builds FOR VALUES IN ('a');
		CREATE TABLE builds_b PARTITION OF builds FOR VALUES IN ('b');
		CREATE INDEX ON builds (project_id);
		INSERT INTO builds VALUES (1, 'a'), (2, 'b')`)
	w := newWorker(t, Options{Definitions: parse(t, oneDefinition)}, install(t, pool, "projects"))
	exec(t, pool, "INSERT INTO projects VALUES (1), (2)")
	exec(t, pool, "DELETE FROM projects WHERE id = 1")
	wantRows(t, pool, "SELECT DISTINCT ctid::text FROM builds", "(0,1)") // both rows have the same ctid, as the test needs it
	if r := runOnce(t, w, "main"); r.Deletes != 1 {
		t.Errorf("the run says %+v", r)
	}
	wantRows(t, pool, "SELECT name FROM builds", "b")
}

// A parent table is partitioned on two levels. Whichever of its tables a DELETE names, the
// trigger must record the name of the topmost table.
func TestPartitionedParent(t *testing.T) {
	t.Parallel()
	pool := newPool(t, `
		CREATE TABLE projects (id bigint, kind int, PRIMARY KEY (id, kind)) PARTITION BY LIST (kind);
		CREATE TABLE projects_1 PARTITION OF projects FOR VALUES IN (1) PARTITION BY HASH (id);
		CREATE TABLE projects_1_0 PARTITION OF projects_1 FOR VALUES WITH (MODULUS 1, REMAINDER 0);
		INSERT INTO projects SELECT g, 1 FROM generate_series(1, 5) g;
		CREATE TABLE builds (id bigserial PRIMARY KEY, project_id bigint);
		CREATE INDEX ON builds (project_id);
		INSERT INTO builds (project_id) SELECT g FROM generate_series(1, 5) g`)
	db := install(t, pool)
	err := DefaultSchema.TrackRecordDeletions(t.Context(), pool, "projects")
	if err == nil || !strings.Contains(err.Error(), "override") {
		t.Errorf("tracking it as a plain table: %v", err)
	}
	must(t, DefaultSchema.TrackRecordDeletionsOverrideTableName(t.Context(), pool, "projects"))
	w := newWorker(t, Options{Definitions: parse(t, oneDefinition)}, db)
	for i, table := range []string{"projects", "projects_1", "projects_1_0"} {
		exec(t, pool, fmt.Sprintf("DELETE FROM %s WHERE id = %d", table, i+1))
	}
	wantRows(t, pool, "SELECT fully_qualified_table_name || ' ' || primary_key_value FROM loose_foreign_keys_deleted_records ORDER BY 1",
		"public.projects 1", "public.projects 2", "public.projects 3")
	if r := runOnce(t, w, "main"); r.Deletes != 3 {
		t.Errorf("the run says %+v", r)
	}
	must(t, DefaultSchema.UntrackRecordDeletions(t.Context(), pool, "projects"))
	wantRows(t, pool, "SELECT count(*)::int FROM pg_trigger WHERE NOT tgisinternal", 0)
}

// The worker deletes children that are parents of other rows. The same run must also delete
// these other rows.
func TestChain(t *testing.T) {
	t.Parallel()
	pool := newPool(t, `
		CREATE TABLE groups (id bigint PRIMARY KEY);
		CREATE TABLE projects (id bigint PRIMARY KEY, group_id bigint);
		CREATE INDEX ON projects (group_id);
		CREATE TABLE builds (id bigserial PRIMARY KEY, project_id bigint);
		CREATE INDEX ON builds (project_id);
		INSERT INTO groups VALUES (1), (2);
		INSERT INTO projects SELECT g, g % 2 + 1 FROM generate_series(1, 20) g;
		INSERT INTO builds (project_id) SELECT g % 20 + 1 FROM generate_series(1, 200) g`)
	w := newWorker(t, Options{Definitions: parse(t, oneDefinition+"\nprojects: [{table: groups, column: group_id, on_delete: async_delete}]")},
		install(t, pool, "projects", "groups"))
	exec(t, pool, "DELETE FROM groups WHERE id = 1")
	runOnce(t, w, "main")
	runOnce(t, w, "main")
	wantRows(t, pool, "SELECT (SELECT count(*) FROM projects) || ' ' || (SELECT count(*) FROM builds)", "10 100")
}

// A run must process urgent records first, even if its limit lets it process no others.
func TestUrgentLane(t *testing.T) {
	t.Parallel()
	pool := newPool(t, oneChild)
	db := install(t, pool, "projects")
	w := newWorker(t, Options{Definitions: parse(t, oneDefinition), MaxDeletes: 5, Batch: 1}, db)
	for id := range 5 {
		family(t, pool, id+1, 5)
	}
	n, err := db.Expedite(t.Context(), "projects", 4)
	must(t, err)
	if n != 1 {
		t.Errorf("%d records were put first, want 1", n)
	}
	runOnce(t, w, "main")
	wantRows(t, pool, "SELECT DISTINCT project_id FROM builds ORDER BY 1", int64(1), 2, 3, 5)
}

// A role that may delete parents must need no right on the table of deleted records. Objects
// that the role puts on its search path must not change what the trigger does.
func TestTriggerRights(t *testing.T) {
	t.Parallel()
	pool := newPool(t, oneChild)
	install(t, pool, "projects")
	exec(t, pool, "INSERT INTO projects VALUES (1)")
	role := "clerk_" + query[string](t, pool, "SELECT current_database()")[0]
	exec(t, pool, "CREATE ROLE "+role)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		_, _ = pool.Exec(ctx, "DROP OWNED BY "+role)
		if _, err := pool.Exec(ctx, "DROP ROLE "+role); err != nil {
			t.Error(err)
		}
	})
	exec(t, pool, "GRANT SELECT, DELETE ON projects TO "+role)
	must(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		exec(t, tx, "CREATE TEMPORARY TABLE loose_foreign_keys_deleted_records (fully_qualified_table_name text, primary_key_value text)")
		exec(t, tx, "SET LOCAL ROLE "+role)
		exec(t, tx, "SET LOCAL search_path = pg_temp, public")
		exec(t, tx, "DELETE FROM projects")
		return nil
	}))
	wantRows(t, pool, "SELECT primary_key_value FROM public.loose_foreign_keys_deleted_records", int64(1))
}

// With the triggers of GuardInserts no client may be able to insert a child whose parent
// doesn't exist or is being deleted. Without these triggers the child would be an orphan.
func TestGuardInserts(t *testing.T) {
	t.Parallel()
	pool := newPool(t, oneChild)
	w := newWorker(t, Options{Definitions: parse(t, oneDefinition)}, install(t, pool, "projects"))
	must(t, DefaultSchema.GuardInserts(t.Context(), pool, "builds", "project_id", "projects"))
	exec(t, pool, "INSERT INTO projects VALUES (1), (2), (3)")
	exec(t, pool, "INSERT INTO builds (project_id) VALUES (1), (1), (2), (NULL)")
	for sql, want := range map[string]string{
		"INSERT INTO builds (project_id) VALUES (1), (9)":       "insert on table builds violates its loose foreign key: project_id=9 is not in table",
		"UPDATE builds SET project_id = 9 WHERE project_id = 2": "update on table builds violates its loose foreign key: project_id=9 is not in table",
	} {
		if _, err := pool.Exec(t.Context(), sql); err == nil || !strings.Contains(err.Error(), want) || !pg.IsState(err, "23503") {
			t.Errorf("%s: %v, want %q", sql, err, want)
		}
	}
	// While a client deletes the parent, an insert of a child must wait, then fail.
	tx, err := pool.Begin(t.Context())
	must(t, err)
	exec(t, tx, "DELETE FROM projects WHERE id = 3")
	inserted := make(chan error, 1)
	go func() {
		_, err := pool.Exec(context.WithoutCancel(t.Context()), "INSERT INTO builds (project_id) VALUES (3)")
		inserted <- err
	}()
	waitBlocked(t, pool, tx.Conn())
	must(t, tx.Commit(t.Context()))
	if err := <-inserted; !pg.IsState(err, "23503") {
		t.Errorf("an insert below a parent that was being deleted: %v", err)
	}
	// While a client inserts a child, a delete of its parent must wait; the worker finds
	// the child.
	tx, err = pool.Begin(t.Context())
	must(t, err)
	exec(t, tx, "INSERT INTO builds (project_id) VALUES (2)")
	deleted := make(chan error, 1)
	go func() {
		_, err := pool.Exec(context.WithoutCancel(t.Context()), "DELETE FROM projects WHERE id = 2")
		deleted <- err
	}()
	waitBlocked(t, pool, tx.Conn())
	must(t, tx.Commit(t.Context()))
	must(t, <-deleted)
	// Clients may update other columns of a child whose parent was deleted.
	exec(t, pool, "UPDATE builds SET id = id + 1000 WHERE project_id = 2")
	runOnce(t, w, "main")
	wantRows(t, pool, "SELECT COALESCE(project_id, 0) FROM builds ORDER BY 1", int64(0), 1, 1)
	must(t, DefaultSchema.UnguardInserts(t.Context(), pool, "builds", "project_id"))
	exec(t, pool, "INSERT INTO builds (project_id) VALUES (9)")
}

// The worker must search for children in another database a second time: a client that
// still saw the parent may insert a child after the first search.
func TestSecondLook(t *testing.T) {
	t.Parallel()
	pool, other := newPool(t, "CREATE TABLE projects (id bigint PRIMARY KEY)"), newPool(t, "CREATE TABLE builds (project_id bigint)", "CREATE INDEX ON builds (project_id)")
	main := install(t, pool, "projects")
	w := newWorker(t, Options{Definitions: parse(t, oneDefinition)}, main, Database{Name: "ci", Pool: other, Tables: []string{"builds"}})
	exec(t, pool, "INSERT INTO projects VALUES (1), (2)")
	exec(t, other, "INSERT INTO builds SELECT g % 2 + 1 FROM generate_series(1, 10) g")
	exec(t, pool, "DELETE FROM projects WHERE id = 1")
	if r := runOnce(t, w, "ci"); r.Records != 0 {
		t.Errorf("a run of the children's database says %+v", r)
	}
	if r := runOnce(t, w, "main"); r.Deletes != 5 || r.Again != 1 || r.Processed != 0 {
		t.Errorf("the run says %+v", r)
	}
	wantRows(t, pool, attempts, "1 1 -1 true")
	exec(t, other, "INSERT INTO builds VALUES (1)") // after the first look
	if r := runOnce(t, w, "main"); r.Records != 0 {
		t.Errorf("a run within the hour says %+v", r)
	}
	exec(t, pool, "UPDATE loose_foreign_keys_deleted_records SET consume_after = consume_after - interval '1 hour'")
	if r := runOnce(t, w, "main"); r.Deletes != 1 || r.Again != 0 || r.Processed != 1 {
		t.Errorf("the second look says %+v", r)
	}
	wantRows(t, other, "SELECT DISTINCT project_id FROM builds", int64(2))
	// If a parent is inserted again, its children in the other database must stay.
	exec(t, pool, "DELETE FROM projects WHERE id = 2")
	exec(t, pool, "INSERT INTO projects VALUES (2)")
	if r := runOnce(t, w, "main"); r.Deletes != 0 || r.Processed != 1 {
		t.Errorf("a run for a parent that is back says %+v", r)
	}
}

// The worker's DELETE waits for a child that a client has locked, and the client then
// changes the child. The DELETE has found the child's old version and doesn't delete the
// new one, so the worker must repeat the DELETE.
func TestChildChangesWhileWaitedFor(t *testing.T) {
	t.Parallel()
	pool := newPool(t, oneChild, "ALTER TABLE builds ADD COLUMN name text")
	w := newWorker(t, Options{Definitions: parse(t, oneDefinition), LockTimeout: 10 * time.Second}, install(t, pool, "projects"))
	family(t, pool, 1, 2)
	tx, err := pool.Begin(t.Context())
	must(t, err)
	exec(t, tx, "UPDATE builds SET name = 'new' WHERE id = 1")
	done := make(chan Result, 1)
	go func() {
		r, err := w.RunOnce(context.WithoutCancel(t.Context()), "main")
		if err != nil {
			t.Error(err)
		}
		done <- r
	}()
	waitBlocked(t, pool, tx.Conn())
	must(t, tx.Commit(t.Context()))
	if r := <-done; r.Deletes != 2 || r.Processed != 1 {
		t.Errorf("the run says %+v", r)
	}
	wantRows(t, pool, "SELECT count(*)::int FROM builds", 0)
}

// A foreign key forbids the worker to delete a child. The run must return an error, count
// an attempt for the deleted record of the child's parent, and process the deleted records
// of other parent tables.
func TestErrorLeavesRecords(t *testing.T) {
	t.Parallel()
	pool := newPool(t, oneChild, `
		CREATE TABLE hard (build_id bigint REFERENCES builds (id));
		CREATE TABLE users (id bigint PRIMARY KEY);
		CREATE TABLE keys (id bigserial PRIMARY KEY, user_id bigint);
		CREATE INDEX ON keys (user_id)`)
	w := newWorker(t, Options{Definitions: parse(t, oneDefinition+"\nkeys: [{table: users, column: user_id, on_delete: async_delete}]")},
		install(t, pool, "projects", "users"))
	family(t, pool, 1, 2)
	exec(t, pool, "INSERT INTO hard SELECT min(id) FROM builds")
	exec(t, pool, "INSERT INTO users VALUES (7)")
	exec(t, pool, "INSERT INTO keys (user_id) VALUES (7)")
	exec(t, pool, "DELETE FROM users")
	r, err := w.RunOnce(t.Context(), "main")
	if !pg.IsState(err, "23503") || !strings.Contains(err.Error(), "builds.project_id → projects (async_delete), loose.yml:1") {
		t.Errorf("the run ends with %v", err)
	}
	if r.Processed != 1 || r.Incremented != 1 || r.Deletes != 1 {
		t.Errorf("the run says %+v", r)
	}
	wantRows(t, pool, attempts, "1 1 1 false", "7 2 0 false")
}

func TestAdvance(t *testing.T) {
	t.Parallel()
	ids := []parentKey{"10", "20", "30", "40"}
	for name, c := range map[string]struct {
		found                     []found
		rows, limit, share        int
		done, paused, ahead, back []parentKey
	}{
		"nothing":                         {nil, 0, 8, 100, ids, nil, nil, nil},
		"some of each":                    {[]found{{0, 1}, {2, 1}}, 2, 8, 100, ids, nil, nil, nil},
		"a heavy one":                     {[]found{{1, 2}, {2, 1}}, 3, 8, 100, []parentKey{"10", "30", "40"}, nil, nil, []parentKey{"20"}},
		"a heavy one that had its share":  {[]found{{1, 2}, {2, 1}}, 3, 8, 2, []parentKey{"10", "30", "40"}, []parentKey{"20"}, nil, nil},
		"full in the middle of the third": {[]found{{1, 1}, {2, 1}}, 2, 2, 100, []parentKey{"10", "20"}, nil, []parentKey{"40"}, []parentKey{"30"}},
		"changed less than was found":     {[]found{{0, 1}}, 0, 8, 100, nil, nil, nil, ids},
	} {
		var out outcome
		s := advance(ids, c.found, c.rows, c.limit, 2, map[parentKey]int{}, c.share, &out)
		if !slices.Equal(out.done, c.done) || !slices.Equal(out.paused, c.paused) || !slices.Equal(s.ahead, c.ahead) || !slices.Equal(s.back, c.back) {
			t.Errorf("%s: done %v, paused %v, ahead %v, back %v", name, out.done, out.paused, s.ahead, s.back)
		}
	}
}

// Even for 500 parents the DELETE must find children through the index of their column, and
// read no more rows than its limit.
func TestPlan(t *testing.T) {
	t.Parallel()
	pool := newPool(t, oneChild, "INSERT INTO builds (project_id) SELECT g % 1000 + 1 FROM generate_series(1, 50000) g", "ANALYZE")
	w := newWorker(t, Options{Definitions: parse(t, oneDefinition)}, install(t, pool, "projects"))
	rs, _, err := lookUp(t.Context(), w.opt.Databases, w.opt.Definitions)
	must(t, err)
	ids := make([]string, 500)
	for i := range ids {
		ids[i] = strconv.Itoa(i + 1)
	}
	for _, skip := range []bool{true, false} {
		sql, _ := rs[0].statement(1000, 250, skip)
		var plan []string
		must(t, bound(t.Context(), pool, timeouts{time.Second, time.Minute}, "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) "+sql, []any{ids},
			func(rows pgx.Rows) (err error) {
				plan, err = pgx.CollectRows(rows, pgx.RowTo[string])
				return err
			}))
		text := strings.Join(plan, "\n")
		if strings.Contains(text, "Seq Scan on builds") || strings.Contains(text, "Bitmap") ||
			!strings.Contains(text, "Index Scan using builds_project_id_idx") || !strings.Contains(text, "Tid Scan on builds") {
			t.Errorf("the plan is\n%s", text)
		}
	}
}
