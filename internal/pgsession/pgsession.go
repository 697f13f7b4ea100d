// Package pgsession sets up connections to PostgreSQL so that neither end waits for the
// other without limit.
//
// A process that vanishes (its machine loses power, or a firewall drops the connection)
// doesn't close its connections. PostgreSQL keeps their transactions, with all row
// locks, and by default notices only after two hours. Likewise, a client waits
// indefinitely for a server that has vanished.
//
// Each wait has its own limit:
//
//   - The peer's machine doesn't answer at all: TCP keepalives and the user timeout
//     end the connection at both ends, after [Silence].
//   - The client stalls between two statements of a transaction:
//     idle_in_transaction_session_timeout.
//   - The client stalls within a batch of statements: transaction_timeout, which
//     PostgreSQL has since version 17.
//   - The client is gone while its statement runs: client_connection_check_interval,
//     and statement_timeout at the latest.
//   - The server accepts a statement and never answers: [Tracer] ends the call some
//     seconds after the server should have ended the statement. A pool waits for an
//     idle connection to answer for [PingTimeout].
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
	// Silence is how long a peer's machine may leave packets unacknowledged before
	// either end takes the connection for lost.
	Silence = keepIdle + keepCount*keepInterval

	keepIdle     = 10 * time.Second
	keepInterval = 5 * time.Second
	keepCount    = 3

	// checkInterval is how often PostgreSQL checks that the client of a running
	// statement is still connected.
	checkInterval = 5 * time.Second
	// connectTimeout limits the time to connect, including authentication.
	connectTimeout = 15 * time.Second
	// PingTimeout limits how long a pool waits for an idle connection to answer before
	// it uses another one. It is for pgxpool.Config, since [Tracer] doesn't see pings.
	PingTimeout = 5 * time.Second
)

// Limits are the time limits of a session on the server. A limit of 0 leaves the DSN's
// limit, or else the server's.
type Limits struct {
	// Statement limits the duration of a statement.
	Statement time.Duration
	// Lock limits how long a statement waits for a lock.
	Lock time.Duration
	// Idle limits how long a client may stall between two statements of a transaction.
	// The server then ends the transaction and its connection.
	Idle time.Duration
	// Transaction limits the duration of a transaction, whatever it is doing. The
	// server then ends it and its connection. It has no effect before PostgreSQL 17.
	Transaction time.Duration
}

// detection has the settings by which PostgreSQL detects that a client has vanished.
var detection = map[string]string{
	"tcp_keepalives_idle":              strconv.Itoa(int(keepIdle / time.Second)),
	"tcp_keepalives_interval":          strconv.Itoa(int(keepInterval / time.Second)),
	"tcp_keepalives_count":             strconv.Itoa(keepCount),
	"tcp_user_timeout":                 milliseconds(Silence),
	"client_connection_check_interval": milliseconds(checkInterval),
}

// Detects says whether a setting is among those by which PostgreSQL detects that a
// client has vanished. A DSN may override these.
func Detects(setting string) bool { _, ok := detection[setting]; return ok }

// Settings returns the settings for [Set]: the limits, and those by which PostgreSQL
// detects that a client has vanished.
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

// Apply sets the limits on every connection of cfg, except those through a pooler,
// where a session is shared with other clients. Settings in the DSN have priority.
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

// Set applies settings to a session. It returns whether the connection leads directly
// to PostgreSQL rather than to a pooler, which is detected by the process ID, since
// poolers make up their own.
//
// Settings that a server doesn't support are left out: transaction_timeout before
// PostgreSQL 17, and on Windows client_connection_check_interval.
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

// isOf says whether the first column of a result is the process ID that the server
// reported when conn was made.
func isOf(conn *pgconn.PgConn, r *pgconn.Result) bool {
	return len(r.Rows) == 1 && string(r.Rows[0][0]) == strconv.FormatUint(uint64(conn.PID()), 10)
}

// Dialing limits the time to connect, and makes the client detect that the server's
// machine has vanished.
func Dialing(cfg *pgconn.Config) {
	cfg.ConnectTimeout = connectTimeout
	cfg.DialFunc = dial
	cfg.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.DeadlineContextWatcherHandler{Conn: conn.Conn(), DeadlineDelay: finish}
	}
}

// finish is how much longer a statement may run after its context has ended; almost all
// end within that time. Cancelling a statement closes its connection, and PostgreSQL
// logs an error, each time that a client hangs up.
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
