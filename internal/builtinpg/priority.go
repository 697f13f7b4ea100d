//go:build unix

package builtinpg

import "fmt"

const (
	// backgroundNice is what is added to the nice value of a process that works in
	// the background: nine or ten of its shares of a core go to one that doesn't.
	backgroundNice = 10
	// backgroundSlice is how long such a process asks to run at a stretch. Linux
	// lets one that asks for less, as all do by default, run as soon as it wakes.
	// More would keep the process waiting for as much longer when all cores are
	// busy, with what it has locked.
	backgroundSlice = 20_000_000 // ns
)

// Background makes the connection behind which a PostgreSQL process of this
// machine stands give way to others, when there are more of them than cores. pid
// is the process id that PostgreSQL told when it connected. It lasts as long as
// the connection, and is only for work whose locks nobody waits for.
func Background(pid uint32) error {
	if err := lowerPriority(int(pid)); err != nil {
		return fmt.Errorf("lowering the priority of PostgreSQL's process %d: %w", pid, err)
	}
	return nil
}
