package db

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/purser-registry/purser/internal/pgsession"
)

// ErrSharedSessions says that a pooler between Purser and PostgreSQL gives one
// session of PostgreSQL's to several connections.
var ErrSharedSessions = errors.New("a connection pooler stands before PostgreSQL and shares sessions (PgBouncer's pool_mode = transaction or statement): " +
	"Purser's settings, locks and notifications belong to sessions. Give it a pool of its own with pool_mode = session, for this database or this user, or connect to PostgreSQL directly")

// configure has every connection of cfg set its parameters, those of the DSN too,
// by a statement after it is made. A pooler refuses most of them in the message
// that opens a connection. Settings of pgsession that the DSN has are the DSN's where
// params doesn't name them. The connection fails with ErrSharedSessions where the
// settings would be another client's a moment later.
func configure(cfg *pgx.ConnConfig, params map[string]string) {
	pgsession.Dialing(&cfg.Config)
	for name, value := range cfg.RuntimeParams {
		if name == "application_name" || name == "options" { // of which a pooler takes the one, and the other holds several
			continue
		}
		if _, ok := params[name]; !ok || pgsession.Detects(name) {
			params[name] = value
		}
		delete(cfg.RuntimeParams, name)
	}
	if name, ok := params["application_name"]; ok {
		cfg.RuntimeParams["application_name"] = name
		delete(params, "application_name")
	}
	cfg.AfterConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		direct, err := pgsession.Set(ctx, conn, params)
		if err != nil || direct {
			return err
		}
		return requireOwnSession(ctx, &cfg.Config, conn)
	}
}

// ownSessions has the poolers that were seen to keep a session for each connection.
var ownSessions sync.Map

// comparisonPatience bounds the wait for a second connection to compare with. A
// pooler that has none to give is one that shares no sessions.
const comparisonPatience = 3 * time.Second

// requireOwnSession compares the sessions of two connections through a pooler, in
// an order in which a pooler that shares them shows it whether it gives out the
// session that was used last or the one that waited longest.
func requireOwnSession(ctx context.Context, cfg *pgconn.Config, conn *pgconn.PgConn) error {
	key := fmt.Sprintf("%s:%d/%s/%s", cfg.Host, cfg.Port, cfg.Database, cfg.User)
	if _, ok := ownSessions.Load(key); ok {
		return nil
	}
	short, cancel := context.WithTimeout(ctx, comparisonPatience)
	defer cancel()
	other := cfg.Copy()
	other.AfterConnect = nil
	second, err := pgconn.ConnectConfig(short, other)
	if err != nil {
		return ctx.Err()
	}
	defer second.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing is lost
	used := map[*pgconn.PgConn]string{}
	for _, c := range []*pgconn.PgConn{conn, conn, second, second, conn, second} {
		pid, err := backend(short, c)
		switch {
		case err != nil && c == second:
			return ctx.Err()
		case err != nil:
			return fmt.Errorf("setting up the session: %w", err)
		}
		for by, before := range used {
			if (by == c) != (pid == before) {
				return ErrSharedSessions
			}
		}
		used[c] = pid
	}
	ownSessions.Store(key, true)
	return nil
}

// backend is the process of PostgreSQL's that serves a connection.
func backend(ctx context.Context, conn *pgconn.PgConn) (string, error) {
	r := conn.ExecParams(ctx, "SELECT pg_backend_pid()", nil, nil, nil, nil).Read()
	if r.Err != nil {
		return "", r.Err
	}
	return string(r.Rows[0][0]), nil
}

// codeProtocolViolation is what a pooler answers to a parameter that it doesn't know.
const codeProtocolViolation = "08P01"

// explain adds to the error of a connection that a pooler refused what helps.
func explain(err error) error {
	if Code(err) == codeProtocolViolation && strings.Contains(err.Error(), "startup parameter") {
		return fmt.Errorf("%w (a connection pooler stands before PostgreSQL: leave the parameter out of the DSN, or have PgBouncer take it with ignore_startup_parameters, which leaves it unset)", err)
	}
	return err
}
