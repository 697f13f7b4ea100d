package main

import (
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"
)

// The budgets are seconds of a machine whose cores, all at once, do the work of yardstick in
// yardstickSeconds. A slower machine, or one that does other things beside the tests, has as much more
// time as it needs more for that work: a budget finds tests that have become too long, and not
// machines that are slow. It is what the work would take on the machine for which the budgets were set:
// where it took 0.63 s, three packages that share their time between Go and PostgreSQL took 1.4 times as
// long as there.
const yardstickSeconds = 0.45

// slowness returns how much longer than yardstickSeconds the work takes now: 1 where it doesn't.
func slowness() float64 {
	began := time.Now()
	yardstick()
	return max(1, time.Since(began).Seconds()/yardstickSeconds)
}

// yardstick lets each core do what tests are busy with: it formats numbers, and allocates, hashes,
// compares and moves what it gets.
func yardstick() {
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for range 4 {
				words := map[string]int{}
				for i := range 150_000 {
					words[strconv.Itoa(i*7919)] = i
				}
				sorted := make([]string, 0, len(words))
				for word := range words {
					sorted = append(sorted, word)
				}
				slices.Sort(sorted)
			}
		})
	}
	wg.Wait()
}
