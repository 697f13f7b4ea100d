package doctor

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/purser-registry/purser/loosefk"
	"github.com/purser-registry/purser/loosefk/internal/testdb"
)

func audit(t testing.TB, w *loosefk.Worker, o AuditOptions) []Orphans {
	t.Helper()
	found, err := Audit(t.Context(), w, o)
	must(t, err)
	return found
}

// tally returns the counts of an audit as the text "child a/b c/d examples": a is the number
// of children whose parents have a pending record, and b the number of these parents; c is
// the number of orphans, and d the number of their missing parents.
func tally(o Orphans) string {
	return fmt.Sprintf("%s %d/%d %d/%d %v", o.Child, o.Pending, o.PendingParents, o.Rows, o.Parents, o.Examples)
}

func wantTally(t testing.TB, found []Orphans, want ...string) {
	t.Helper()
	var got []string
	for _, o := range found {
		got = append(got, tally(o))
	}
	if !slices.Equal(got, want) {
		t.Errorf("the audit says %q, want %q", got, want)
	}
}

func TestAudit(t *testing.T) {
	t.Parallel()
	pool := newPool(t, testdb.Projects)
	w := newWorker(t, loosefk.Options{Definitions: parse(t, testdb.ProjectsDefinitions)}, install(t, pool, "projects"))
	wantTally(t, audit(t, w, AuditOptions{}), "public.pipelines 0/0 0/0 []", "public.requests 0/0 0/0 []", "public.packages 0/0 0/0 []")

	// Delete project 1, with a deleted record, and project 2, without one. The definition's
	// condition is met by all packages of project 1, which are of the kind npm, and by no
	// package of project 2.
	exec(t, pool, "DELETE FROM projects WHERE id = 1")
	exec(t, pool, "ALTER TABLE projects DISABLE TRIGGER projects_loose_fk_trigger")
	exec(t, pool, "DELETE FROM projects WHERE id = 2")
	exec(t, pool, "ALTER TABLE projects ENABLE TRIGGER projects_loose_fk_trigger")
	exec(t, pool, "INSERT INTO pipelines (project_id) VALUES (NULL), (-7), (2147483647)")
	exec(t, pool, "INSERT INTO packages VALUES (9, 'a', 4, 'npm'), (9, 'b', 1, 'go'), (10, 'c', NULL, 'npm')")
	want := []string{
		"public.pipelines 1000/1 1002/3 [-7 2 2147483647]",
		"public.requests 10/1 10/1 [2]",
		"public.packages 100/1 1/1 [10]",
	}
	for _, page := range []int{0, 1, 2, 3} {
		wantTally(t, audit(t, w, AuditOptions{Page: page}), want...)
	}
	wantTally(t, audit(t, w, AuditOptions{Children: []string{"public.requests"}}), want[1])
	if _, err := Audit(t.Context(), w, AuditOptions{Children: []string{"nonsense"}}); err == nil {
		t.Error("a table that is no child was audited")
	}

	found := audit(t, w, AuditOptions{Repair: true, Page: 2})
	if got := []int64{found[0].Repaired, found[1].Repaired, found[2].Repaired}; !slices.Equal(got, []int64{3, 0, 1}) {
		t.Errorf("%v records were written, want 3 for the first child, none again for the same parents, 1 for the last", got)
	}
	testdb.WantRows(t, pool, "SELECT primary_key_value FROM loose_foreign_keys_deleted_records WHERE status = 1 ORDER BY 1", int64(-7), 1, 2, 10, 2147483647)
	runOnce(t, w, "main")
	wantTally(t, audit(t, w, AuditOptions{}), "public.pipelines 0/0 0/0 []", "public.requests 0/0 0/0 []", "public.packages 0/0 0/0 []")
	testdb.WantRows(t, pool, "SELECT DISTINCT project_id FROM pipelines WHERE project_id IS NOT NULL ORDER BY 1", 3, 4)
	testdb.WantRows(t, pool, "SELECT name || status FROM packages WHERE project_id > 4 ORDER BY 1", "a4", "b1", "c4")
}

// TestAuditTwoDatabases audits children in another database than their parents.
func TestAuditTwoDatabases(t *testing.T) {
	t.Parallel()
	main, ci := newPool(t, "CREATE TABLE projects (id bigint PRIMARY KEY); INSERT INTO projects SELECT generate_series(1, 5000, 2)"),
		newPool(t, `CREATE TABLE loads (project_id bigint, part int) PARTITION BY LIST (part);
			CREATE TABLE loads_1 PARTITION OF loads FOR VALUES IN (1);
			CREATE TABLE loads_2 PARTITION OF loads FOR VALUES IN (2);
			CREATE INDEX ON loads (project_id);
			INSERT INTO loads SELECT g, g % 3 % 2 + 1 FROM generate_series(1, 5000) g;
			INSERT INTO loads SELECT g, 1 FROM generate_series(1, 5000) g`)
	db := install(t, main, "projects")
	db.Tables = []string{"projects"}
	w := newWorker(t, loosefk.Options{SecondLook: -1, Definitions: parse(t, "loads:\n- {table: projects, column: project_id, on_delete: async_delete}")},
		db, loosefk.Database{Name: "ci", Pool: ci})
	wantTally(t, audit(t, w, AuditOptions{}), "public.loads 0/0 5000/2500 [2 4 6 8 10 12 14 16 18 20]")
	if found := audit(t, w, AuditOptions{Repair: true}); found[0].Repaired != 2500 || found[0].Database != "ci" {
		t.Errorf("%+v", found)
	}
	wantTally(t, audit(t, w, AuditOptions{}), "public.loads 5000/2500 0/0 []")
	runOnce(t, w, "main")
	wantTally(t, audit(t, w, AuditOptions{}), "public.loads 0/0 0/0 []")
	testdb.WantRows(t, ci, "SELECT count(*) FROM loads", int64(5000))
}

// TestAuditRepairSparesParents: a repair must not write a record for a parent that a client
// has inserted again after the audit looked it up, nor a second record if another repair
// has written one.
func TestAuditRepairSparesParents(t *testing.T) {
	t.Parallel()
	pool := newPool(t, testdb.Projects)
	w := newWorker(t, loosefk.Options{Definitions: parse(t, testdb.ProjectsDefinitions)}, install(t, pool, "projects"))
	rs, _, err := loosefk.Resolve(t.Context(), w.Options().Databases, w.Options().Definitions)
	must(t, err)
	for _, want := range []int64{1, 0} {
		n, err := reference{rs[0]}.record(t.Context(), []string{"1", "2", "77"})
		must(t, err)
		if n != want {
			t.Errorf("%d records were written, want %d: one for the parent that is gone, once", n, want)
		}
	}
	testdb.WantRows(t, pool, "SELECT primary_key_value FROM loose_foreign_keys_deleted_records", int64(77))
}

// TestAuditReadsTheIndex: an audit must read one index entry for each parent, however many
// children the parent has.
func TestAuditReadsTheIndex(t *testing.T) {
	t.Parallel()
	pool := newPool(t, `CREATE TABLE projects (id bigint PRIMARY KEY); INSERT INTO projects SELECT generate_series(1, 3);
		CREATE TABLE pipelines (project_id int); CREATE INDEX ON pipelines (project_id);
		INSERT INTO pipelines SELECT g % 3 + 1 FROM generate_series(1, 100000) g`)
	w := newWorker(t, loosefk.Options{Definitions: parse(t, "pipelines:\n- {table: projects, column: project_id, on_delete: async_delete}")}, install(t, pool, "projects"))
	exec(t, pool, "ANALYZE pipelines")
	rs, _, err := loosefk.Resolve(t.Context(), w.Options().Databases, w.Options().Definitions)
	must(t, err)
	rows := regexp.MustCompile(`Scan using pipelines_project_id_idx .*rows=(\d+)(?:\.\d+)? loops`)
	for _, args := range [][]any{{1000}, {1000, "1"}} {
		plan := strings.Join(testdb.Query[string](t, pool, "EXPLAIN (ANALYZE, TIMING OFF, COSTS OFF) "+reference{rs[0]}.parentsQuery(len(args) == 1), args...), "\n")
		scans := rows.FindAllStringSubmatch(plan, -1)
		if len(scans) != 2 || scans[0][1] > "1" || scans[1][1] > "1" || strings.Contains(plan, "Seq Scan") {
			t.Errorf("want two scans of the index that read a row each time:\n%s", plan)
		}
	}
}
