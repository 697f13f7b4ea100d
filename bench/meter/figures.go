// Package meter has the measuring instruments of the scenarios: CPU time and memory of
// processes, the CPU time that other programs used on the machine, the heap of this process,
// latencies with their percentiles, and the spread of repeated measurements.
package meter

import (
	"fmt"
	"slices"
	"time"
)

// Percentile returns the p-th percentile (0 < p <= 100) of `sorted`, which must be in
// ascending order, by the nearest-rank method. It returns 0 if there are no latencies.
func Percentile(sorted []time.Duration, p float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	// The rank is p*n/100 rounded up. If p*n/100 is a whole number, the floating-point result
	// may be slightly larger. Subtracting 1e-9 keeps it from being rounded up to the next
	// rank.
	rank := int(p*float64(len(sorted))/100 + 1 - 1e-9)
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// Spread has the minimum, median and maximum of a figure that was measured in several windows.
type Spread struct {
	Min    float64 `json:"min"`
	Median float64 `json:"median"`
	Max    float64 `json:"max"`
}

func NewSpread(values []float64) Spread {
	if len(values) == 0 {
		return Spread{}
	}
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return Spread{Min: sorted[0], Median: (sorted[(n-1)/2] + sorted[n/2]) / 2, Max: sorted[n-1]}
}

// Latencies are the latencies of requests, sorted.
type Latencies []time.Duration

// At returns the latency that this percentage of the requests didn't exceed, to a microsecond.
func (l Latencies) At(percent float64) time.Duration {
	return Percentile(l, percent).Round(time.Microsecond)
}

// Ratio returns the percentile `percent` of `l`, divided by the same percentile of `other`.
func (l Latencies) Ratio(other Latencies, percent float64) float64 {
	return float64(l.At(percent)) / float64(other.At(percent))
}

// String returns the number of requests and four percentiles.
func (l Latencies) String() string {
	return fmt.Sprintf("%d, p50 %s p90 %s p95 %s p99 %s", len(l), l.At(50), l.At(90), l.At(95), l.At(99))
}
