package memory

import (
	"os"
	"runtime/debug"
)

// SetLimit sets Go's soft memory limit to nine tenths of what the process's cgroup
// allows, or to six tenths if the built-in PostgreSQL runs in the same cgroup. It
// returns the limit in bytes. It returns 0 and changes nothing if no cgroup limits the
// process, or if GOMEMLIMIT is set. HoldHeap's memory is added to the limit, since Go
// counts it and the system doesn't.
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

// softLimit returns the limit for a process in a cgroup that may use so many bytes, 0:
// no limit.
func softLimit(group int64, withPostgres bool) int64 {
	if withPostgres {
		return group / 10 * 6
	}
	return group / 10 * 9
}
