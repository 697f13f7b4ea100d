package loosefktest_test

import (
	"context"
	"fmt"
	"log"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/purser-registry/purser/loosefk"
	"github.com/purser-registry/purser/loosefk/internal/testdb"
	"github.com/purser-registry/purser/loosefk/loosefktest"
)

// This example tests that deletions of projects are recorded and their children cleaned up.
// In an application, t is the argument of the test, pool leads to a database with all
// migrations applied, and defs come from loosefk.Load.
func Example() {
	t, pool, defs := exampleApplication()
	defer t.done()

	loosefktest.HasLooseForeignKeys(t, pool, defs, "projects")
	loosefktest.CleanedUp(t, pool, defs, loosefktest.Child{Table: "pipelines", Column: "project_id"})

	// If loosefktest can't make up a row, functions of the application insert it.
	loosefktest.CleanedUp(t, pool, defs, loosefktest.Child{Table: "requests", Column: "project_id"},
		loosefktest.NewParent(func(ctx context.Context, db loosefk.DB) (id int64, err error) {
			err = db.QueryRow(ctx, "INSERT INTO projects VALUES (4711) RETURNING id").Scan(&id)
			return id, err
		}),
		loosefktest.NewChild(func(ctx context.Context, db loosefk.DB, parent int64) error {
			_, err := db.Exec(ctx, "INSERT INTO requests (project_id) VALUES ($1)", parent)
			return err
		}))

	fmt.Println("failed:", t.failed)
	// Output:
	// failed: false
}

// exampleT implements testing.TB for helpers that need one, because an Example has none.
type exampleT struct {
	testing.TB
	failed   bool
	cleanups []func()
}

func (t *exampleT) Helper()                           {}
func (t *exampleT) Context() context.Context          { return context.Background() }
func (t *exampleT) Cleanup(fn func())                 { t.cleanups = append(t.cleanups, fn) }
func (t *exampleT) Errorf(format string, args ...any) { t.failed = true; log.Printf(format, args...) }
func (t *exampleT) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
func (t *exampleT) Skipf(format string, args ...any)  { panic(fmt.Sprintf(format, args...)) }

func (t *exampleT) done() {
	for i := len(t.cleanups) - 1; i >= 0; i-- {
		t.cleanups[i]()
	}
}

func exampleApplication() (*exampleT, *pgxpool.Pool, loosefk.Definitions) {
	t := new(exampleT)
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, testdb.DSN(t))
	if err != nil {
		log.Fatal(err)
	}
	t.Cleanup(pool.Close)
	_, err = pool.Exec(ctx, `
		CREATE TABLE projects (id bigint PRIMARY KEY);
		CREATE TABLE pipelines (id bigserial PRIMARY KEY, project_id bigint NOT NULL);
		CREATE INDEX ON pipelines (project_id);
		CREATE TABLE requests (id bigserial PRIMARY KEY, project_id bigint);
		CREATE INDEX ON requests (project_id)`, pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		log.Fatal(err)
	}
	if err := loosefk.DefaultSchema.Install(ctx, pool); err != nil {
		log.Fatal(err)
	}
	if err := loosefk.DefaultSchema.TrackRecordDeletions(ctx, pool, "projects"); err != nil {
		log.Fatal(err)
	}
	return t, pool, loosefk.Definitions{
		{Child: "pipelines", Parent: "projects", Column: "project_id", OnDelete: loosefk.AsyncDelete},
		{Child: "requests", Parent: "projects", Column: "project_id", OnDelete: loosefk.AsyncNullify},
	}
}
