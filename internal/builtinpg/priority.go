//go:build unix

package builtinpg

import "fmt"

// Foreground lets the PostgreSQL process that serves a connection run as soon as it
// wakes. In a server with Options.Background all other processes, autovacuum's
// included, give way to processes that wake. Their share of the CPU stays the same, so
// they don't hold their locks much longer. pid is the process ID that PostgreSQL
// reports for the connection; the effect lasts as long as the connection.
//
// It works on Linux 6.12 and newer, if this process may change the scheduling of
// PostgreSQL's processes: as the same user, or with CAP_SYS_NICE. Otherwise it returns
// an error, which can be ignored: Options.Background has no effect then either.
func Foreground(pid uint32) error {
	if err := setSlice(int(pid), usualSlice); err != nil {
		return fmt.Errorf("making PostgreSQL's process %d run as soon as it wakes: %w", pid, err)
	}
	return nil
}

// background makes a process, and the children that it will start, give way to others.
func background(pid int) error { return setSlice(pid, backgroundSlice) }

const (
	usualSlice = 0 // the kernel's default
	// backgroundSlice is the time slice that a background process requests. The kernel
	// preempts it for a process that wakes and requests a shorter slice, which is the
	// default. A longer slice would also make this process itself wait longer.
	backgroundSlice = 20_000_000 // ns
)
