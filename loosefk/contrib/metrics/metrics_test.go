package metrics_test

import (
	"context"
	"fmt"
	"log"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/purser-registry/purser/loosefk"
	"github.com/purser-registry/purser/loosefk/contrib/metrics"
	"github.com/purser-registry/purser/loosefk/internal/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newDatabase creates a database with the parent table projects, whose deletions are
// recorded, and the child table builds.
func newDatabase(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), testdb.DSN(t))
	must(t, err)
	t.Cleanup(pool.Close)
	exec(t, pool, `CREATE TABLE projects (id bigint PRIMARY KEY);
		CREATE TABLE builds (id bigserial PRIMARY KEY, project_id bigint);
		CREATE INDEX ON builds (project_id)`)
	must(t, loosefk.DefaultSchema.Install(t.Context(), pool))
	must(t, loosefk.DefaultSchema.TrackRecordDeletions(t.Context(), pool, "projects"))
	return pool
}

func exec(t *testing.T, pool *pgxpool.Pool, sql string) {
	t.Helper()
	_, err := pool.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
	must(t, err)
}

// deleteProject inserts a project with n builds, and deletes the project only.
func deleteProject(t *testing.T, pool *pgxpool.Pool, id, n int) {
	t.Helper()
	exec(t, pool, fmt.Sprintf(`INSERT INTO projects VALUES (%[1]d);
		INSERT INTO builds (project_id) SELECT %[1]d FROM generate_series(1, %[2]d);
		DELETE FROM projects WHERE id = %[1]d`, id, n))
}

// newWorker makes a worker whose metrics are registered in reg.
func newWorker(t *testing.T, pool *pgxpool.Pool, reg prometheus.Registerer, o loosefk.Options) *loosefk.Worker {
	t.Helper()
	var err error
	o.Observer, err = metrics.New(reg)
	must(t, err)
	o.Databases = loosefk.Databases{{Name: "main", Pool: pool}}
	o.Definitions = loosefk.Definitions{{Child: "builds", Parent: "projects", Column: "project_id", OnDelete: loosefk.AsyncDelete}}
	w, err := loosefk.New(o)
	must(t, err)
	return w
}

// gather returns the values of a registry's metrics, by name and label values.
func gather(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	must(t, err)
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, l.GetValue())
			}
			slices.Sort(labels)
			got[f.GetName()+" "+strings.Join(labels, " ")] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return got
}

func run(t *testing.T, w *loosefk.Worker) {
	t.Helper()
	_, err := w.RunOnce(t.Context(), "main")
	must(t, err)
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	pool := newDatabase(t)
	reg := prometheus.NewPedanticRegistry()
	w := newWorker(t, pool, reg, loosefk.Options{MaxDeletes: 10, DeleteLimit: 2, RescheduleAfter: time.Hour})
	deleteProject(t, pool, 1, 100)
	deleteProject(t, pool, 2, 1)
	for range 4 {
		run(t, w)
	}
	got := gather(t, reg)
	for name, want := range map[string]float64{
		"loose_foreign_key_processed_deleted_records_total main public.projects":   1,
		"loose_foreign_key_incremented_deleted_records_total main public.projects": 2,
		"loose_foreign_key_rescheduled_deleted_records_total main public.projects": 1,
		"loose_foreign_key_deletions_total main public.builds":                     40,
		"loose_foreign_key_pending_deleted_records main public.projects":           1,
		"loose_foreign_key_run_duration_seconds main":                              4,
	} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
	if age := got["loose_foreign_key_oldest_pending_seconds main public.projects"]; age <= 0 || age > 60 {
		t.Errorf("the oldest pending record is %v s old", age)
	}
	if n, ok := got["loose_foreign_key_run_failures_total main"]; ok {
		t.Errorf("%v runs have failed", n)
	}
	exec(t, pool, "DROP TABLE builds")
	if _, err := w.RunOnce(t.Context(), "main"); err == nil {
		t.Error("a run without the child table succeeds")
	}
	got = gather(t, reg)
	if n := got["loose_foreign_key_run_failures_total main"]; n != 1 {
		t.Errorf("after a run that couldn't begin, %v runs have failed", n)
	}
	for _, name := range []string{"loose_foreign_key_pending_deleted_records", "loose_foreign_key_oldest_pending_seconds"} {
		if n, ok := got[name+" main public.projects"]; ok {
			t.Errorf("%s is still %v, though nobody knows it", name, n)
		}
	}
}

// TestPendingUnknown: the records can't be counted, but their last count isn't shown for the present
// one.
func TestPendingUnknown(t *testing.T) {
	t.Parallel()
	pool := newDatabase(t)
	reg := prometheus.NewPedanticRegistry()
	w := newWorker(t, pool, reg, loosefk.Options{MaxDeletes: 10, DeleteLimit: 2})
	deleteProject(t, pool, 1, 100)
	run(t, w)
	const name = "loose_foreign_key_pending_deleted_records main public.projects"
	if n := gather(t, reg)[name]; n != 1 {
		t.Fatalf("%v pending, want 1", n)
	}
	pool.Close()
	if _, err := w.RunOnce(t.Context(), "main"); err == nil {
		t.Error("a run without a database succeeds")
	}
	if n, ok := gather(t, reg)[name]; ok {
		t.Errorf("still %v pending", n)
	}
}

// Two workers of one process use the same registerer. Their counts must add up in its
// metrics.
func TestWorkersShareRegisterer(t *testing.T) {
	t.Parallel()
	pool := newDatabase(t)
	reg := prometheus.NewPedanticRegistry()
	for id := range 2 {
		w := newWorker(t, pool, reg, loosefk.Options{})
		deleteProject(t, pool, id, 3)
		run(t, w)
	}
	if n := gather(t, reg)["loose_foreign_key_deletions_total main public.builds"]; n != 6 {
		t.Errorf("%v rows were deleted, want 6", n)
	}
}

// If the registerer has another metric of the same name, New must return an error.
func TestNameIsTaken(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(prometheus.NewCounter(prometheus.CounterOpts{Name: "loose_foreign_key_deletions_total", Help: "Others."}))
	if _, err := metrics.New(reg); err == nil || !strings.Contains(err.Error(), "loose foreign keys") {
		t.Errorf("it says %v", err)
	}
}

func ExampleNew() {
	registry := prometheus.NewRegistry()
	m, err := metrics.New(registry)
	if err != nil {
		log.Fatal(err)
	}
	pool, err := pgxpool.New(context.Background(), "postgres://localhost/app") // connects when it is used
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	_, err = loosefk.New(loosefk.Options{Databases: loosefk.Databases{{Name: "main", Pool: pool}}, Observer: m})
	fmt.Println(err)
	// Output:
	// <nil>
}
