//go:build linux

package builtinpg

import (
	"errors"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestBackground(t *testing.T) {
	t.Parallel()
	s := begin(t, testOptions(newDir(t)))
	conn, other := connect(t, s.DSN("")), connect(t, s.DSN(""))
	before := slice(t, other.PgConn().PID())
	if before == 0 {
		t.Skip("this kernel has no slices that can be set: it is older than 6.12")
	}
	err := Background(conn.PgConn().PID())
	if errors.Is(err, syscall.EPERM) {
		t.Skip("this process may not change the scheduling of others: it lacks CAP_SYS_NICE")
	}
	must(t, err)
	if got := slice(t, conn.PgConn().PID()); got != backgroundSlice || got <= before {
		t.Errorf("it asks for %d ns at a stretch, others for %d", got, before)
	}
	if got := slice(t, other.PgConn().PID()); got != before {
		t.Errorf("another connection asks for %d ns and not %d", got, before)
	}
	end(t, s)
	wantError(t, Background(1<<22+1), "give way", strconv.Itoa(1<<22+1)) // above what Linux gives out
}

// slice is how long a process asks to run at a stretch, ns; 0 where the kernel
// doesn't say.
func slice(t *testing.T, pid uint32) uint64 {
	t.Helper()
	attr, err := unix.SchedGetAttr(int(pid), 0)
	must(t, err)
	return attr.Runtime
}
