package loosefk

import (
	"slices"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	folders = `
		CREATE TABLE folders (id bigint PRIMARY KEY, folder_id bigint);
		CREATE INDEX ON folders (folder_id)`
	foldersDefinition = "folders: [{table: folders, column: folder_id, on_delete: async_delete}]"
)

// drained makes runs of a worker until no deleted record is pending, and returns their
// number.
func drained(t *testing.T, pool *pgxpool.Pool, w *Worker) int {
	t.Helper()
	for runs := 1; ; runs++ {
		runOnce(t, w, "main")
		if query[int](t, pool, "SELECT count(*)::int FROM loose_foreign_keys_deleted_records WHERE status = 1")[0] == 0 {
			return runs
		}
		if runs == 20 {
			t.Fatal("20 runs haven't cleaned it up")
		}
	}
}

// A table is its own child. One run must delete all descendants of a deleted row, level by
// level, and no other rows.
func TestTrees(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, rows, delete string }{
		{"deep", "SELECT g, nullif(g - 1, 0) FROM generate_series(1, 200) g", "id = 1"},
		{"wide", "SELECT g, CASE WHEN g > 1 THEN 1 END FROM generate_series(1, 3000) g", "id = 1"},
		{"both", "SELECT g, nullif(g / 3, 0) FROM generate_series(1, 2000) g", "id <= 2"},
		{"a ring", "SELECT g, g % 50 + 1 FROM generate_series(1, 50) g", "id = 7"},
		{"its own parent", "SELECT g, 1 FROM generate_series(1, 10) g", "id = 1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			pool := newPool(t, folders)
			w := newWorker(t, Options{Definitions: parse(t, foldersDefinition), Batch: 100}, install(t, pool, "folders"))
			exec(t, pool, "INSERT INTO folders "+tt.rows)
			exec(t, pool, "INSERT INTO folders VALUES (1000000, NULL), (1000001, 1000000)")
			exec(t, pool, "DELETE FROM folders WHERE "+tt.delete)
			if r := runOnce(t, w, "main"); r.OverLimit != "" {
				t.Errorf("the run says %+v", r)
			}
			wantRows(t, pool, "SELECT id FROM folders ORDER BY 1", int64(1000000), 1000001)
			wantRows(t, pool, "SELECT count(*)::int FROM loose_foreign_keys_deleted_records WHERE status = 1", 0)
			findings, err := Tools.Examine(t.Context(), w)
			must(t, err)
			if len(findings) > 0 {
				t.Errorf("doctor says %+v", findings)
			}
		})
	}
}

// Two tables are parents of each other, and a row is deleted that begins a chain of 100
// rows through both. Runs with small limits must delete the chain.
func TestCircle(t *testing.T) {
	t.Parallel()
	pool := newPool(t, `
		CREATE TABLE hens (id bigint PRIMARY KEY, egg_id bigint);
		CREATE TABLE eggs (id bigint PRIMARY KEY, hen_id bigint);
		CREATE INDEX ON hens (egg_id); CREATE INDEX ON eggs (hen_id)`)
	w := newWorker(t, Options{Definitions: parse(t, `
hens: [{table: eggs, column: egg_id, on_delete: async_delete}]
eggs: [{table: hens, column: hen_id, on_delete: async_delete}]`), MaxDeletes: 40}, install(t, pool, "hens", "eggs"))
	exec(t, pool, "INSERT INTO eggs SELECT g, g FROM generate_series(1, 100) g")
	exec(t, pool, "INSERT INTO hens SELECT g, g - 1 FROM generate_series(1, 100) g")
	exec(t, pool, "DELETE FROM hens WHERE id = 50")
	if runs := drained(t, pool, w); runs > 5 {
		t.Errorf("100 rows at 40 a run took %d runs", runs)
	}
	if got := query[int](t, pool, "SELECT count(*)::int FROM hens UNION ALL SELECT count(*)::int FROM eggs"); !slices.Equal(got, []int{49, 49}) {
		t.Errorf("%v rows are left, want 49 each", got)
	}
}

// A row of a tree is deleted. With async_nullify the worker must set the reference of the
// row's children to NULL, so that each child becomes the root of a tree.
func TestTreeNullify(t *testing.T) {
	t.Parallel()
	pool := newPool(t, folders)
	w := newWorker(t, Options{Definitions: parse(t, "folders: [{table: folders, column: folder_id, on_delete: async_nullify}]")}, install(t, pool, "folders"))
	exec(t, pool, "INSERT INTO folders VALUES (1, 1), (2, 1), (3, 2)")
	exec(t, pool, "DELETE FROM folders WHERE id = 1")
	runOnce(t, w, "main")
	wantRows(t, pool, "SELECT COALESCE(folder_id, 0) FROM folders ORDER BY id", int64(0), 2)
}
