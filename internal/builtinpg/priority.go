//go:build unix

package builtinpg

import "fmt"

// Foreground lets the PostgreSQL process of one connection run as soon as it wakes up. pid is
// the process ID that PostgreSQL reports for the connection. In a server with
// Options.Background, all other processes, also autovacuum's, yield to processes that wake up.
// Their share of the CPU stays the same, so that they don't hold their locks much longer. The
// effect lasts as long as the connection.
//
// Foreground works on Linux 6.12 and newer, if this process may change the scheduling of
// PostgreSQL's processes: it needs the same user or CAP_SYS_NICE. Otherwise Foreground returns
// an error, which the caller may ignore, since Options.Background then has no effect either.
func Foreground(pid uint32) error {
	if err := setSlice(int(pid), usualSlice); err != nil {
		return fmt.Errorf("making PostgreSQL's process %d run as soon as it wakes: %w", pid, err)
	}
	return nil
}

// background makes a process, and all children that it starts later, yield to processes that
// wake up.
func background(pid int) error { return setSlice(pid, backgroundSlice) }

const (
	usualSlice = 0 // the kernel's default
	// backgroundSlice is the time slice that a background process requests, in ns. When a
	// process with a shorter slice, such as the default, wakes up, the kernel lets it run at
	// once. The longer slice also makes the background process itself wait longer when it
	// wakes up.
	backgroundSlice = 20_000_000 // ns
)
