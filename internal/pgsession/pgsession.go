// Package pgsession sets up connections to PostgreSQL so that neither end waits
// without limit for the other.
//
// A process that vanishes (its machine loses power, a firewall forgets the
// connection) doesn't close its connections. PostgreSQL keeps their transactions
// and every row lock in them, and by default it notices after two hours. Likewise,
// a client that waits for a server that vanished waits until it gives up itself.
//
// Each wait has a bound of its own:
//
//   - The peer's machine doesn't answer at all: TCP keepalives and the user timeout,
//     at both ends, after [Silence].
//   - The client stalls between two statements of a transaction:
//     idle_in_transaction_session_timeout.
//   - The client stalls within a batch of statements: transaction_timeout, which
//     PostgreSQL has from 17 on.
//   - The client has gone while its statement runs: client_connection_check_interval,
//     and statement_timeout at the latest.
//   - The server accepts a statement and never answers: [Tracer] ends the call some
//     seconds after the server should have ended the statement. A pool waits for an
//     idle connection for [PingTimeout].
package pgsession

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
)

const (
	// Silence is for how long a peer's machine may leave packets unanswered before
	// the connection counts as lost, at either end.
	Silence = keepIdle + keepCount*keepInterval

	keepIdle     = 10 * time.Second
	keepInterval = 5 * time.Second
	keepCount    = 3

	// checkInterval is how often PostgreSQL looks whether the client of a running
	// statement is still there.
	checkInterval = 5 * time.Second
	// connectTimeout bounds a connection's making, the log-in included.
	connectTimeout = 15 * time.Second
	// PingTimeout bounds how long a pool waits for a connection that was idle to answer
	// before it takes another one. It is for pgxpool.Config: no [Tracer] sees a ping.
	PingTimeout = 5 * time.Second
)

// Limits are the bounds of a session on the server. 0: what the DSN, or else the
// server, says.
type Limits struct {
	// Statement ends a statement.
	Statement time.Duration
	// Lock ends a statement that waits longer for a lock.
	Lock time.Duration
	// Idle ends a transaction, with its connection, whose client stalls between two
	// statements.
	Idle time.Duration
	// Transaction ends a transaction, with its connection, however it spends its
	// time. Before PostgreSQL 17 it has no effect.
	Transaction time.Duration
}

// detection are the settings by which PostgreSQL finds out that a client has vanished.
var detection = map[string]string{
	"tcp_keepalives_idle":              strconv.Itoa(int(keepIdle / time.Second)),
	"tcp_keepalives_interval":          strconv.Itoa(int(keepInterval / time.Second)),
	"tcp_keepalives_count":             strconv.Itoa(keepCount),
	"tcp_user_timeout":                 milliseconds(Silence),
	"client_connection_check_interval": milliseconds(checkInterval),
}

// Detects says whether a setting is one by which PostgreSQL finds out that a client
// has vanished: there a DSN may know better than this package.
func Detects(setting string) bool { _, ok := detection[setting]; return ok }

// Settings are the limits, and what PostgreSQL needs to find out that a client has
// vanished, for [Set].
func Settings(l Limits) map[string]string {
	all := maps.Clone(detection)
	for name, d := range map[string]time.Duration{
		"statement_timeout":                   l.Statement,
		"lock_timeout":                        l.Lock,
		"idle_in_transaction_session_timeout": l.Idle,
		"transaction_timeout":                 l.Transaction,
	} {
		if d > 0 {
			all[name] = milliseconds(d)
		}
	}
	return all
}

// Apply gives the limits to every connection of cfg that isn't made through a pooler,
// where a setting would be another client's a moment later. What the DSN sets stays.
func Apply(cfg *pgconn.Config, l Limits) {
	Dialing(cfg)
	settings := Settings(l)
	for name := range cfg.RuntimeParams {
		delete(settings, name)
	}
	cfg.AfterConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		r := conn.ExecParams(ctx, "SELECT pg_backend_pid()", nil, nil, nil, nil).Read()
		if r.Err != nil || !isOf(conn, r) {
			return r.Err
		}
		_, err := Set(ctx, conn, settings)
		return err
	}
}

// Set sets up a session. It says whether the connection leads straight to PostgreSQL:
// a pooler gives out process ids of its own.
//
// Settings that not every server has are left out elsewhere: transaction_timeout came
// with PostgreSQL 17, and on Windows it can't see that a connection was closed.
func Set(ctx context.Context, conn *pgconn.PgConn, settings map[string]string) (direct bool, err error) {
	list, err := json.Marshal(settings)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout) // Config.ConnectTimeout covers what came before
	defer cancel()
	r := conn.ExecParams(ctx, `
		SELECT pg_backend_pid(), (
			SELECT count(set_config(key, value, false)) FROM json_each_text($1::json)
			WHERE (key <> 'transaction_timeout' OR current_setting('server_version_num')::int >= 170000)
				AND (key <> 'client_connection_check_interval' OR version() !~* 'visual c|msvc|mingw|windows'))`,
		[][]byte{list}, nil, nil, nil).Read()
	if r.Err != nil {
		return false, fmt.Errorf("setting up the session: %w", r.Err)
	}
	return isOf(conn, r), nil
}

// isOf says whether the first column of a result is the process that the server named
// when conn was made.
func isOf(conn *pgconn.PgConn, r *pgconn.Result) bool {
	return len(r.Rows) == 1 && string(r.Rows[0][0]) == strconv.FormatUint(uint64(conn.PID()), 10)
}

// Dialing makes connections in bounded time, and so that a server whose machine has
// vanished is noticed.
func Dialing(cfg *pgconn.Config) {
	cfg.ConnectTimeout = connectTimeout
	cfg.DialFunc = dial
	cfg.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.DeadlineContextWatcherHandler{Conn: conn.Conn(), DeadlineDelay: finish}
	}
}

// finish is how long a statement may go on whose context has ended: almost all end
// within it. Cancelling one costs its connection, and PostgreSQL logs it as an error,
// each time that a client hangs up.
const finish = time.Second

func dial(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{
		Timeout:         connectTimeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: keepIdle, Interval: keepInterval, Count: keepCount},
	}
	if strings.HasPrefix(network, "tcp") {
		d.Control = setUserTimeout
	}
	return d.DialContext(ctx, network, address)
}

// LiftTransaction takes transaction_timeout away from the transaction that it runs
// in, on servers that have one.
const LiftTransaction = `SELECT count(set_config(name, '0', true)) FROM pg_settings WHERE name = 'transaction_timeout'`

func milliseconds(d time.Duration) string {
	return strconv.FormatInt(max(d.Milliseconds(), 1), 10)
}
