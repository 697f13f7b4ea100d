package meter

import (
	"runtime/metrics"
	"time"
)

// WatchHeap samples the size of this process's heap every 100 ms, until the returned function
// is called, which returns the largest size in bytes.
func WatchHeap() (peak func() uint64) {
	stop, most := make(chan struct{}), make(chan uint64)
	go func() {
		var high uint64
		// The two metrics are the heap's objects and the free space between them. Reading the
		// metrics doesn't stop the world.
		m := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/unused:bytes"}}
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			metrics.Read(m)
			high = max(high, m[0].Value.Uint64()+m[1].Value.Uint64())
			select {
			case <-stop:
				most <- high
				return
			case <-tick.C:
			}
		}
	}()
	return func() uint64 {
		close(stop)
		return <-most
	}
}
