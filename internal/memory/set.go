package memory

import (
	"os"
	"runtime/debug"
)

// SetLimit tells Go how much memory this process may use before it collects harder,
// bytes: nine tenths of what its control group allows, or six tenths where the
// built-in PostgreSQL lives in the group too. It returns 0 and changes nothing where
// no group limits it, or where GOMEMLIMIT is set, which then holds. What HoldHeap
// holds is counted by Go and not by the system, and comes on top.
func SetLimit(withPostgres bool) int64 {
	if os.Getenv("GOMEMLIMIT") != "" {
		return 0
	}
	n := softLimit(groupLimit("/"), withPostgres)
	if n == 0 {
		return 0
	}
	n += int64(len(held))
	debug.SetMemoryLimit(n)
	return n
}

// softLimit is the limit for a process in a group that may use so many bytes, 0: no
// limit.
func softLimit(group int64, withPostgres bool) int64 {
	if withPostgres {
		return group / 10 * 6
	}
	return group / 10 * 9
}
