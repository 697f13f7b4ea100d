package db

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/purser-registry/purser/internal/pgsession"
)

// ErrSharedSessions says that a connection pooler between Purser and PostgreSQL lets several
// client connections share one PostgreSQL session.
var ErrSharedSessions = errors.New("a connection pooler stands before PostgreSQL and shares sessions (PgBouncer's pool_mode = transaction or statement): " +
	"Purser's settings, locks and notifications belong to sessions. Give it a pool of its own with pool_mode = session, for this database or this user, or connect to PostgreSQL directly")

// configure changes cfg so that every connection sets the settings in params, those in the
// DSN, and those of pgsession.Inherited, by statements after connecting, because poolers refuse
// most settings in the startup message. If params and the DSN have the same setting, the value in
// params is used; but for the settings by which PostgreSQL detects a vanished client, the DSN's
// value is used. Connecting fails with ErrSharedSessions if a pooler lets clients share
// PostgreSQL sessions, since the settings would soon apply to another client's statements; and
// with a pgsession.ImposedError if the role or the database imposes a setting with which Purser
// can't work.
func configure(cfg *pgx.ConnConfig, params map[string]string) {
	pgsession.Dialing(&cfg.Config)
	for name, value := range cfg.RuntimeParams {
		if name == "application_name" || name == "options" { // poolers accept application_name; options may hold several settings
			continue
		}
		if _, ok := params[name]; !ok && (pgsession.OfDSN(name) || !pgsession.Inherits(name)) || pgsession.Detects(name) {
			params[name] = value
		}
		delete(cfg.RuntimeParams, name)
	}
	if name, ok := params["application_name"]; ok {
		cfg.RuntimeParams["application_name"] = name
		delete(params, "application_name")
	}
	cfg.AfterConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		direct, err := pgsession.Own(ctx, conn, params)
		if err != nil || direct {
			return err
		}
		return requireOwnSession(ctx, &cfg.Config, conn)
	}
}

// ownSessions is a set of poolers or servers, each named by host, port, database and user,
// which requireOwnSession has found to give each connection a PostgreSQL session of its own.
var ownSessions sync.Map

// comparisonPatience is how long requireOwnSession waits for its turn and for its second connection. If that
// connection gets no PostgreSQL session in this time, the connection is accepted unchecked: a
// pooler that shares sessions would have given it the idle session of the first connection.
const comparisonPatience = 3 * time.Second

// comparing lets one connection of this process at a time be compared, since a pooler that gives
// sessions in turn could give each of several comparisons the sessions that it expects.
var comparing = make(chan struct{}, 1)

// comparisons is how often requireOwnSession asks each of two connections, besides the first time.
const comparisons = 8

// requireOwnSession returns ErrSharedSessions if the pooler behind conn shares sessions. It
// opens a second connection, and asks both connections several times for the id of their
// PostgreSQL process: each must always have the same process, and not the other's. The first
// questions find poolers that give a client the session that was used last, and also poolers that
// give it the session that was idle longest. The order of the others is random, so that no
// regular traffic of others can make a pooler that shares sessions look like one that doesn't.
func requireOwnSession(ctx context.Context, cfg *pgconn.Config, conn *pgconn.PgConn) error {
	key := fmt.Sprintf("%s:%d/%s/%s", cfg.Host, cfg.Port, cfg.Database, cfg.User)
	if _, ok := ownSessions.Load(key); ok {
		return nil
	}
	short, cancel := context.WithTimeout(ctx, comparisonPatience)
	defer cancel()
	select {
	case comparing <- struct{}{}:
		defer func() { <-comparing }()
	case <-short.Done():
		return ctx.Err()
	}
	if _, ok := ownSessions.Load(key); ok {
		return nil
	}
	other := cfg.Copy()
	other.AfterConnect = nil
	second, err := pgconn.ConnectConfig(short, other)
	if err != nil {
		return ctx.Err()
	}
	defer second.Close(context.WithoutCancel(ctx)) //nolint:errcheck // the connection was only for this check
	order := slices.Repeat([]*pgconn.PgConn{conn, second}, comparisons)
	rand.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	used := map[*pgconn.PgConn]string{}
	for _, c := range append([]*pgconn.PgConn{conn, conn, second, second}, order...) {
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

// backend returns the id of the PostgreSQL process that serves a connection.
func backend(ctx context.Context, conn *pgconn.PgConn) (string, error) {
	r := conn.ExecParams(ctx, "SELECT pg_backend_pid()", nil, nil, nil, nil).Read()
	if r.Err != nil {
		return "", r.Err
	}
	return string(r.Rows[0][0]), nil
}

// codeProtocolViolation is the SQLSTATE with which a pooler refuses a startup parameter that
// it doesn't know.
const codeProtocolViolation = "08P01"

// explain adds a hint for the operator to a connection error, if a pooler has refused a
// startup parameter of the DSN. It returns other errors unchanged.
func explain(err error) error {
	if Code(err) == codeProtocolViolation && strings.Contains(err.Error(), "startup parameter") {
		return fmt.Errorf("%w (a connection pooler stands before PostgreSQL: leave the parameter out of the DSN, or have PgBouncer take it with ignore_startup_parameters, which leaves it unset)", err)
	}
	return err
}
