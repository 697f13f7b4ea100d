package memory

import "os"

// maxHeld limits what HoldHeap allocates, in bytes.
const maxHeld = 64 << 20

// held is the memory that HoldHeap allocates. Nobody writes to it, so the system assigns no
// physical memory.
var held []byte

// HoldHeap lets this process's heap grow by 64 MiB more before Go collects garbage, or by a
// thirty-second of Limit if that is less, and returns the number of bytes. Without HoldHeap, Go
// collects garbage when the heap has doubled. A process with 10 MB of live data that allocates
// 100 MB per second would collect ten times per second, and each collection takes a core away
// from requests for some milliseconds.
//
// To this end HoldHeap allocates the same number of bytes and never writes to them: Go counts
// them as live, but the system assigns no physical memory. A higher GOGC isn't used instead:
// the heap may grow in proportion to the data that is alive at a collection, so a large heap
// would grow much more, even if most of the data is needed only for a moment. If GOGC or
// GOMEMLIMIT is set, HoldHeap does nothing and returns 0.
func HoldHeap() int64 {
	if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		return 0
	}
	held = make([]byte, share(Limit()))
	return int64(len(held))
}

// share returns how many bytes HoldHeap allocates if the process may use `limit` bytes of
// memory; 0 means that its limit isn't known.
func share(limit int64) int64 {
	if limit <= 0 {
		return maxHeld
	}
	return min(limit/32, maxHeld)
}
