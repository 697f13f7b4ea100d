//go:build linux

package builtinpg

import (
	"context"
	"errors"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// In a server with Options.Background, the test calls Foreground for one connection. It
// expects that only this connection's process has the usual time slice, and all other
// processes of the server the longer one.
func TestForeground(t *testing.T) {
	t.Parallel()
	o := testOptions(newDir(t))
	o.Background = true
	s := begin(t, o)
	usual := slice(t, 0) // this thread's
	if usual == 0 {
		t.Skip("this kernel has no slices that can be set: it is older than 6.12")
	}
	conn, other := connect(t, s.DSN("")), connect(t, s.DSN(""))
	err := Foreground(conn.PgConn().PID())
	if errors.Is(err, syscall.EPERM) { // without CAP_SYS_NICE nothing changes
		if got := slice(t, conn.PgConn().PID()); got != usual {
			t.Errorf("what can't be put into the foreground asks for %d ns at a stretch, and all else for %d", got, usual)
		}
		return
	}
	must(t, err)
	if got := slice(t, conn.PgConn().PID()); got != usual {
		t.Errorf("it asks for %d ns at a stretch, and all else for %d", got, usual)
	}
	if got := slice(t, other.PgConn().PID()); got != backgroundSlice || got <= usual {
		t.Errorf("another connection asks for %d ns, want %d", got, backgroundSlice)
	}
	var workers []int32
	must(t, conn.QueryRow(context.Background(),
		"SELECT array_agg(pid) FROM pg_stat_activity WHERE backend_type <> 'client backend'").Scan(&workers))
	if len(workers) < 3 {
		t.Errorf("PostgreSQL has %d processes of its own", len(workers))
	}
	for _, pid := range workers {
		if got := slice(t, uint32(pid)); got != backgroundSlice {
			t.Errorf("PostgreSQL's own process %d asks for %d ns, want %d", pid, got, backgroundSlice)
		}
	}
	end(t, s)
	wantError(t, Foreground(1<<22+1), "as soon as it wakes", strconv.Itoa(1<<22+1)) // above what Linux gives out
}

// slice returns the time slice that a process requests from the scheduler, in ns; 0 if the
// kernel doesn't report it.
func slice(t *testing.T, pid uint32) uint64 {
	t.Helper()
	attr, err := unix.SchedGetAttr(int(pid), 0)
	must(t, err)
	return attr.Runtime
}
