package memory

import (
	"os"
	"runtime/debug"
)

// SetLimit sets Go's soft memory limit to nine tenths of the memory that the process's cgroup
// allows, or to six tenths if the built-in PostgreSQL runs in the same cgroup. It returns the
// limit in bytes. If no cgroup limits the process, or GOMEMLIMIT is set, it changes nothing
// and returns 0. It adds HoldHeap's memory to the limit, since Go counts that memory although
// it isn't physical memory.
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

// softLimit returns Go's memory limit, without HoldHeap's memory, for a process whose cgroup
// allows `group` bytes; 0 means no limit.
func softLimit(group int64, withPostgres bool) int64 {
	if withPostgres {
		return group / 10 * 6
	}
	return group / 10 * 9
}
