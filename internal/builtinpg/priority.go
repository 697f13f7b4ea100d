//go:build unix

package builtinpg

import "fmt"

// Background makes the process that serves a connection give way when others wake.
// Its share of the cores stays the same, so what it has locked isn't held much
// longer. pid is the process id that PostgreSQL told when it connected, and this
// lasts as long as the connection. It works on Linux 6.12 and newer, for who may
// change the scheduling of PostgreSQL's processes: the same user, or one with
// CAP_SYS_NICE.
func Background(pid uint32) error {
	if err := yieldReadily(int(pid)); err != nil {
		return fmt.Errorf("making PostgreSQL's process %d give way to others: %w", pid, err)
	}
	return nil
}
