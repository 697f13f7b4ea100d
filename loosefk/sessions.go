package loosefk

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/purser-registry/purser/loosefk/internal/pg"
)

// errSharedSessions says that a pooler gives out sessions without the statements that
// a program has prepared there.
var errSharedSessions = errors.New("a prepared statement is lost with the next transaction")

// explain adds to an error what helps behind a pooler that shares sessions: there
// a prepared statement is another client's, or nobody's.
func explain(err error) error {
	if lostStatement(err) || errors.Is(err, errSharedSessions) {
		return fmt.Errorf("%w (a connection pooler shares sessions among clients: put default_query_exec_mode=cache_describe into the DSN, or give PgBouncer 1.21 or newer max_prepared_statements)", err)
	}
	return err
}

// lostStatement says whether a prepared statement isn't there, or another client's.
func lostStatement(err error) bool { return pg.IsState(err, "26000") || pg.IsState(err, "42P05") }

// comparisonTime bounds the comparison of two connections. A pooler that has no second
// session to give keeps one of them waiting; then there is nothing to tell.
const comparisonTime = 3 * time.Second

// sessions finds pools that prepare statements behind a pooler which loses them. By
// chance all may go well for long, as long as each client gets its session again.
func (ds Databases) sessions(ctx context.Context) error {
	var done []*pgxpool.Pool
	for _, d := range ds {
		cfg := d.Pool.Config()
		if slices.Contains(done, d.Pool) || cfg.MaxConns < 2 || cfg.ConnConfig.DefaultQueryExecMode != pgx.QueryExecModeCacheStatement {
			continue
		}
		done = append(done, d.Pool)
		if err := compareSessions(ctx, d.Pool); err != nil {
			return fmt.Errorf("database %s: %w", d.Name, explain(err))
		}
	}
	return nil
}

// compareSessions prepares a statement on a connection and runs it there in the next
// session of another process that the connection gets. So that it gets another one a
// second connection takes the first session in between; and where the pooler gives out
// the session that has waited longest it takes its turn.
func compareSessions(ctx context.Context, pool *pgxpool.Pool) error {
	short, cancel := context.WithTimeout(ctx, comparisonTime)
	defer cancel()
	one, err := pool.Acquire(short)
	if err != nil {
		return ctx.Err() // what uses the pool next says what is wrong
	}
	defer one.Release()
	name := "loosefk_" + rand.Text()
	first, err := inTransaction(short, one, func() error {
		_, err := one.Conn().Prepare(short, name, "SELECT 1")
		return err
	})
	if err != nil || first == one.Conn().PgConn().PID() { // PostgreSQL itself, without a pooler
		one.Conn().Deallocate(short, name) //nolint:errcheck // it ends with the session
		return ctx.Err()
	}
	two, err := pool.Acquire(short)
	if err != nil {
		return ctx.Err()
	}
	defer two.Release()
	again := func() error {
		_, err := inTransaction(short, one, func() error {
			_, err := one.Exec(short, name)
			return err
		})
		return err
	}
	if _, err = inTransaction(short, two, again); err == nil {
		_, err = inTransaction(short, two, func() error { return nil })
	}
	for range 2 {
		if err == nil {
			err = again()
		}
	}
	if lostStatement(err) {
		return fmt.Errorf("%w: %w", errSharedSessions, err)
	}
	if err == nil {
		one.Conn().Deallocate(short, name) //nolint:errcheck // it ends with the session
	}
	return ctx.Err()
}

// inTransaction runs fn between the beginning and the end of a transaction, with
// statements that aren't prepared, and returns which process of PostgreSQL's has it.
func inTransaction(ctx context.Context, conn *pgxpool.Conn, fn func() error) (pid uint32, err error) {
	if _, err := conn.Exec(ctx, "BEGIN", pgx.QueryExecModeSimpleProtocol); err != nil {
		return 0, err
	}
	defer conn.Exec(ctx, "ROLLBACK", pgx.QueryExecModeSimpleProtocol) //nolint:errcheck // a connection that fails is closed
	if err := conn.QueryRow(ctx, "SELECT pg_backend_pid()", pgx.QueryExecModeSimpleProtocol).Scan(&pid); err != nil {
		return 0, err
	}
	return pid, fn()
}
