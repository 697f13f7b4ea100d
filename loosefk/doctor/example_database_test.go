package doctor_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/purser-registry/purser/loosefk/internal/testdb"
)

// exampleT implements testing.TB for helpers that need one, because an Example has none.
type exampleT struct {
	testing.TB
	cleanups []func()
}

func (t *exampleT) Helper()                           {}
func (t *exampleT) Context() context.Context          { return context.Background() }
func (t *exampleT) Cleanup(fn func())                 { t.cleanups = append(t.cleanups, fn) }
func (t *exampleT) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
func (t *exampleT) Skipf(format string, args ...any)  { panic(fmt.Sprintf(format, args...)) }

// openDatabase creates a database with four projects and their children. It returns a pool
// for the database, and a function `done` that removes the database.
func openDatabase() (pool *pgxpool.Pool, done func()) {
	t := new(exampleT)
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, testdb.DSN(t))
	if err != nil {
		panic(err)
	}
	t.Cleanup(pool.Close)
	_, err = pool.Exec(ctx, `
		CREATE TABLE projects (id bigint PRIMARY KEY);
		CREATE TABLE pipelines (id bigserial PRIMARY KEY, project_id bigint);
		CREATE INDEX ON pipelines (project_id);
		CREATE TABLE requests (id bigserial PRIMARY KEY, project_id bigint);
		CREATE INDEX ON requests (project_id);
		CREATE TABLE packages (id bigserial PRIMARY KEY, project_id bigint, status int);
		CREATE INDEX ON packages (project_id, status);
		INSERT INTO projects SELECT generate_series(1, 4);
		INSERT INTO pipelines (project_id) SELECT g % 4 + 1 FROM generate_series(1, 400) g;
		INSERT INTO requests (project_id) SELECT g % 4 + 1 FROM generate_series(1, 40) g;
		INSERT INTO packages (project_id) SELECT g % 4 + 1 FROM generate_series(1, 40) g`, pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		panic(err)
	}
	return pool, func() {
		for i := len(t.cleanups) - 1; i >= 0; i-- {
			t.cleanups[i]()
		}
	}
}
