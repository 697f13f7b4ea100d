package meter

import (
	"runtime/metrics"
	"time"
)

// WatchHeap begins to read the size of this process's heap every 100 ms. The returned function
// ends this, and returns the largest size in bytes.
func WatchHeap() (peak func() uint64) {
	stop, most := make(chan struct{}), make(chan uint64)
	go func() {
		var high uint64
		// The sum of these two metrics is the memory of the heap's objects and of the free
		// space between them. Reading the metrics doesn't stop the world.
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
