package memory

import "os"

// maxHeld is what HoldHeap holds on a machine that has the memory, bytes.
const maxHeld = 64 << 20

// held is never touched, so the system gives no memory for it.
var held []byte

// HoldHeap lets this process's heap grow by 64 MiB more than it would before it is
// collected, or by a thirty-second of Limit if that is less, and returns how much
// that is, bytes. Go collects when the heap has doubled. A process that holds ten
// megabytes and makes a hundred a second of garbage so collects ten times a second,
// and each time requests have a core less for some milliseconds.
//
// It does so by holding that much which is never written: Go counts it as in use, the
// system doesn't. A higher GOGC would multiply a large heap as well as a small one,
// and what happens to be alive during a collection with it. Who has set GOGC or
// GOMEMLIMIT has chosen, and nothing is held.
func HoldHeap() int64 {
	if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		return 0
	}
	held = make([]byte, share(Limit()))
	return int64(len(held))
}

// share is how much to hold with so much memory, 0: unknown.
func share(limit int64) int64 {
	if limit <= 0 {
		return maxHeld
	}
	return min(limit/32, maxHeld)
}
