//go:build all

package main

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"

	"github.com/purser-registry/purser/cmd/purser/internal/backend"
	"github.com/purser-registry/purser/cmd/purser/internal/servetest"
	"github.com/purser-registry/purser/internal/builtinpg"
	"github.com/purser-registry/purser/internal/db/dbtest"
)

// TestRequestsComeFirst: in the built-in PostgreSQL, the processes that work for
// auto-pruning have longer scheduler time slices than those that work for requests and for
// reviews. Thus auto-pruning gives way to them.
func TestRequestsComeFirst(t *testing.T) {
	t.Parallel()
	dbtest.EmptyDSN(t) // skips where there is no PostgreSQL
	cfg := servetest.Config(t)
	s := start(t, cfg)
	dsn, err := builtinpg.RunningDSN(backend.PostgresDir(cfg), backend.DatabaseName)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	slice := func(application string) uint64 {
		var pid uint32
		servetest.WaitFor(t, application+" is connected", func() bool {
			return conn.QueryRow(t.Context(), "SELECT pid FROM pg_stat_activity WHERE application_name = $1 LIMIT 1", application).Scan(&pid) == nil
		})
		attr, err := unix.SchedGetAttr(int(pid), 0)
		if err != nil {
			t.Fatal(err)
		}
		return attr.Runtime
	}
	switch attr, err := unix.SchedGetAttr(0, 0); {
	case err != nil || attr.Runtime == 0:
		t.Log("this kernel has no slices that can be set")
	case builtinpg.Foreground(conn.PgConn().PID()) != nil:
		t.Log("this process may not change the scheduling of others")
	default:
		servetest.WaitFor(t, "requests run as soon as they wake", func() bool { return slice("purser") == attr.Runtime })
		if got := slice("purser autoprune"); got <= attr.Runtime {
			t.Errorf("auto-pruning asks for %d ns at a stretch, requests for %d", got, attr.Runtime)
		}
		if got := slice("purser gc"); got != attr.Runtime {
			t.Errorf("reviews ask for %d ns at a stretch, requests for %d", got, attr.Runtime)
		}
	}
	if err := conn.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := s.Stop(); err != nil {
		t.Errorf("stopping: %v", err)
	}
}
