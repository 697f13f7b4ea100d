// Package pgsession configures connections to PostgreSQL so that neither the client nor the
// server waits for the other without a time limit.
//
// If a client's machine loses power, or a firewall drops a connection, nobody closes the
// connection. PostgreSQL then keeps the client's transaction with all its row locks, and by
// default notices only after two hours. A client also waits without limit for a server that
// has vanished.
//
// To prevent waiting without a limit, each kind of wait has a limit of its own:
//
//   - The other machine doesn't answer at all: TCP keepalives and the user timeout
//     end the connection at both ends, after [Silence].
//   - The client stalls between two statements of a transaction:
//     idle_in_transaction_session_timeout ends the connection.
//   - The client stalls within a batch of statements: transaction_timeout, which
//     PostgreSQL has since version 17, ends the connection.
//   - The client is gone while its statement runs: client_connection_check_interval
//     ends the statement, and statement_timeout at the latest.
//   - The server accepts a statement and never answers: [Tracer] ends the call some
//     seconds after the server should have ended the statement. If an idle connection
//     doesn't answer a ping within [PingTimeout], a pool uses another one.
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
	// Silence is how long packets may stay unacknowledged before the machine that sent them
	// takes the connection for lost and closes it. It applies to client and server.
	Silence = keepIdle + keepCount*keepInterval

	keepIdle     = 10 * time.Second
	keepInterval = 5 * time.Second
	keepCount    = 3

	// checkInterval is how often PostgreSQL checks, while a statement runs, that its client is
	// still connected.
	checkInterval = 5 * time.Second
	// connectTimeout is how long a client tries to connect, including authentication.
	connectTimeout = 15 * time.Second
	// PingTimeout is how long a pool waits for an idle connection to answer a ping before it
	// uses another connection. It is meant for pgxpool.Config, since [Tracer] doesn't see
	// pings.
	PingTimeout = 5 * time.Second
)

// Limits are the time limits that the server applies to a session. A limit of 0 isn't set:
// then the limit in the DSN applies, or else, after [Apply], the one that the role, the database
// or the server imposes, and after [Own] none.
type Limits struct {
	// Statement limits the duration of a statement.
	Statement time.Duration
	// Lock is how long a statement may wait for a lock.
	Lock time.Duration
	// Idle is how long a client may stall between two statements of a transaction; then the
	// server rolls back the transaction and closes the connection.
	Idle time.Duration
	// Transaction is how long a transaction may last; then the server rolls it back and closes
	// the connection. It has no effect before PostgreSQL 17.
	Transaction time.Duration
}

// detection has PostgreSQL's settings by which the server detects that a client has vanished.
var detection = map[string]string{
	"tcp_keepalives_idle":              strconv.Itoa(int(keepIdle / time.Second)),
	"tcp_keepalives_interval":          strconv.Itoa(int(keepInterval / time.Second)),
	"tcp_keepalives_count":             strconv.Itoa(keepCount),
	"tcp_user_timeout":                 milliseconds(Silence),
	"client_connection_check_interval": milliseconds(checkInterval),
}

// Detects returns whether PostgreSQL's setting of this name is one of those by which the
// server detects that a client has vanished. A DSN may override these settings.
func Detects(setting string) bool { _, ok := detection[setting]; return ok }

// Settings returns the settings for [Set]: those limits that aren't 0, and the settings by
// which PostgreSQL detects that a client has vanished.
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

// Apply sets the limits on every new connection that is opened with `cfg`, except connections
// through a pooler, since a pooler's session is shared with other clients. Settings in the DSN
// have priority.
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

// Set applies settings to a session. It returns whether the connection leads directly to
// PostgreSQL and not to a pooler. It learns this by comparing the process ID of the session
// with the one that the connection got when it was opened, since a pooler invents the latter.
//
// Set leaves out settings that the server doesn't support: transaction_timeout before
// PostgreSQL 17, and client_connection_check_interval on Windows.
func Set(ctx context.Context, conn *pgconn.PgConn, settings map[string]string) (direct bool, err error) {
	list, err := json.Marshal(settings)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout) // Config.ConnectTimeout covers only the steps before
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

// isOf returns whether the only value of a result's first column is the process ID that the
// server reported when `conn` was opened. A pooler reports an invented ID, which differs.
func isOf(conn *pgconn.PgConn, r *pgconn.Result) bool {
	return len(r.Rows) == 1 && string(r.Rows[0][0]) == strconv.FormatUint(uint64(conn.PID()), 10)
}

// Dialing limits the time to connect, and lets the client detect that the server's machine has
// vanished.
func Dialing(cfg *pgconn.Config) {
	cfg.ConnectTimeout = connectTimeout
	cfg.DialFunc = dial
	cfg.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.DeadlineContextWatcherHandler{Conn: conn.Conn(), DeadlineDelay: finish}
	}
}

// finish is how much longer a statement may run after its context has ended; almost all
// statements end within that time. If the statement were cancelled at once, each client that
// hangs up would cost a connection and an error in PostgreSQL's log.
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

func milliseconds(d time.Duration) string {
	return strconv.FormatInt(max(d.Milliseconds(), 1), 10)
}
