package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/cmd/purser/internal/serve"
	"github.com/purser-registry/purser/cmd/purser/internal/servetest"
	"github.com/purser-registry/purser/internal/builtinpg/pgtest"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
)

// Two servers work behind a pooler (PgBouncer) in session mode, and so do the connections
// by which they LISTEN for each other's notifications.
func TestServeBehindSessionPooling(t *testing.T) {
	t.Parallel()
	dsn := pgtest.PgBouncer(t, dbtest.DSN(t), "session", "default_pool_size = 100")
	blobs := "PURSER_STORAGE_FILESYSTEM_PATH=" + t.TempDir()
	one := start(t, servetest.Config(t, "PURSER_DATABASE_MAIN="+dsn, blobs))
	two := start(t, servetest.Config(t, "PURSER_DATABASE_MAIN="+dsn, blobs))
	d := dbtest.Open(t, dsn)
	servetest.WaitFor(t, "two listening replicas", func() bool {
		var n int
		if err := d.Pool.QueryRow(t.Context(), "SELECT count(*) FROM replicas").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n == 2
	})
	for _, s := range []*servetest.Server{one, two} {
		if code, body := get(t, s.Debug+"/readyz"); code != 200 {
			t.Errorf("/readyz: %d %s", code, body)
		}
	}
	for _, s := range []*servetest.Server{one, two} {
		if err := s.Stop(); err != nil {
			t.Errorf("stopping: %v", err)
		}
	}
}

// The server and the commands refuse to start if a pooler in front of one of their
// databases is in transaction mode, where clients share PostgreSQL sessions.
func TestServeRefusesSharedSessions(t *testing.T) {
	t.Parallel()
	direct := dbtest.DSN(t)
	pooled := pgtest.PgBouncer(t, dbtest.DSN(t), "transaction")
	for _, environ := range [][]string{
		{"PURSER_DATABASE_MAIN=" + pooled},
		{"PURSER_DATABASE_MAIN=" + direct, "PURSER_DATABASE_STATS=" + pooled},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		if err := serve.Run(ctx, servetest.Config(t, environ...), new(strings.Builder), quiet, nil); !errors.Is(err, db.ErrSharedSessions) {
			t.Errorf("%q: the server says %v", environ, err)
		}
		for _, args := range [][]string{{"migrate", "up"}, {"gc", "status"}, {"loosefk", "status"}} {
			code, _, stderr := purser(t, append(environ, "PURSER_DATA_DIR="+t.TempDir()), args...)
			if len(environ) == 2 && args[0] == "gc" {
				continue // it needs no statistics
			}
			if code != 1 || !strings.Contains(stderr, "pool_mode = session") {
				t.Errorf("%q: %q: exit code %d: %s", environ, args, code, stderr)
			}
		}
	}
}
