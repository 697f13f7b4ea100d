package memory

import "os"

// maxHeld limits what HoldHeap allocates, in bytes.
const maxHeld = 64 << 20

// held is never written, so the system assigns no memory to it.
var held []byte

// HoldHeap lets this process's heap grow by 64 MiB more before a garbage collection, or
// by a thirty-second of Limit if that is less. It returns this number of bytes. Go
// collects when the heap has doubled: a process with ten megabytes of live data that
// allocates a hundred per second would collect ten times per second, and each
// collection takes a core away from requests for some milliseconds.
//
// HoldHeap does this by allocating that much memory and never writing to it: Go counts
// it as live, but the system doesn't assign memory to it. A higher GOGC would also let
// a large heap grow in proportion, including data that only happens to be alive during
// a collection. If GOGC or GOMEMLIMIT is set, HoldHeap does nothing.
func HoldHeap() int64 {
	if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		return 0
	}
	held = make([]byte, share(Limit()))
	return int64(len(held))
}

// share returns how much HoldHeap allocates with so much memory, 0: unknown.
func share(limit int64) int64 {
	if limit <= 0 {
		return maxHeld
	}
	return min(limit/32, maxHeld)
}
