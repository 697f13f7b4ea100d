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

// errSharedSessions says that a connection pooler runs the transactions of one client
// connection in different PostgreSQL sessions, so that statements which the client has
// prepared in one session are missing in another.
var errSharedSessions = errors.New("a prepared statement is lost with the next transaction")

// explain adds the remedy to errors that occur behind a connection pooler which runs the
// transactions of one connection in different sessions: in another session a prepared
// statement is missing, or its name belongs to another client's statement.
func explain(err error) error {
	if lostStatement(err) || errors.Is(err, errSharedSessions) {
		return fmt.Errorf("%w (a connection pooler shares sessions among clients: put default_query_exec_mode=cache_describe into the DSN, or give PgBouncer 1.21 or newer max_prepared_statements)", err)
	}
	return err
}

// lostStatement returns whether err means that a prepared statement is missing, or that its
// name is taken by another client's statement.
func lostStatement(err error) bool { return pg.IsState(err, "26000") || pg.IsState(err, "42P05") }

// comparisonTime bounds compareSessions, which needs two PostgreSQL sessions at once. A
// connection pooler that has only one session lets the second connection wait; then
// compareSessions ends after this time and finds nothing wrong.
const comparisonTime = 3 * time.Second

// sessions returns an error if one of the pools prepares statements behind a connection
// pooler that loses them. Such a pool may work for a long time, as long as the pooler
// happens to give each connection the same session again.
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

// compareSessions returns errSharedSessions if a connection pooler runs the transactions of
// one client connection in different PostgreSQL sessions. It prepares a statement on a first
// connection and executes it there in later transactions: in another session the statement
// is missing. A second connection makes the pooler choose another session, in two ways:
//
//   - First the second connection holds a transaction open, in the session that was used
//     last, while the first connection executes the statement.
//   - Then the second connection runs a short transaction, and after it the first connection
//     executes the statement twice more. A pooler that gives out the session that was idle
//     for longest then chooses another one.
func compareSessions(ctx context.Context, pool *pgxpool.Pool) error {
	short, cancel := context.WithTimeout(ctx, comparisonTime)
	defer cancel()
	one, err := pool.Acquire(short)
	if err != nil {
		return ctx.Err() // the next user of the pool reports the error
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

// inTransaction runs fn inside a transaction, whose BEGIN and ROLLBACK aren't prepared
// statements. It returns the PID of the PostgreSQL process that ran the transaction, and the
// error of fn.
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
