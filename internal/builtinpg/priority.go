//go:build unix

package builtinpg

import "fmt"

// Foreground makes the process that serves a connection run as soon as it wakes. All
// processes of a server with Options.Background let others that wake go first,
// the ones that vacuum too. Their share of the cores is the same, so what they have
// locked isn't held much longer. pid is the process id that PostgreSQL told when it
// connected, and this lasts as long as the connection.
//
// It works on Linux 6.12 and newer, for who may change the scheduling of PostgreSQL's
// processes: the same user, or one with CAP_SYS_NICE. For others nothing is in the
// background, so they lose nothing by the error.
func Foreground(pid uint32) error {
	if err := setSlice(int(pid), usualSlice); err != nil {
		return fmt.Errorf("making PostgreSQL's process %d run as soon as it wakes: %w", pid, err)
	}
	return nil
}

// background puts a process, and those that it will start, into the background.
func background(pid int) error { return setSlice(pid, backgroundSlice) }

const (
	usualSlice = 0 // the kernel's own
	// backgroundSlice is how long a process in the background asks to run at a
	// stretch. The kernel lets one that asks for less, as all do by default, run as
	// soon as it wakes. More would keep this one waiting for longer at a stretch, too.
	backgroundSlice = 20_000_000 // ns
)
