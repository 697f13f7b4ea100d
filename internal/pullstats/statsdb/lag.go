package statsdb

import (
	"sync"
	"time"
)

// LagReading is what a worker has learned of how far it is behind. Without `known` the lag is
// unknown, and as long as it is, the metric grows with the time.
type LagReading struct {
	behind time.Duration
	known  bool
}

// LagKnown is the reading of a worker that is behind by the time `behind`.
func LagKnown(behind time.Duration) LagReading { return LagReading{behind, true} }

// LagUnknown is the reading of a worker that couldn't look.
func LagUnknown() LagReading { return LagReading{} }

// GrowingLag is a gauge of a lag. It counts from the last reading on, and at first from the start,
// so that a worker that can't look doesn't seem to be as far as it was.
type GrowingLag struct {
	mu    sync.Mutex
	since time.Time // what was made before this time is counted, as far as is known
}

// Seconds takes note of a reading at the time `now`, and returns the lag then, in seconds.
func (l *GrowingLag) Seconds(r LagReading, now time.Time) float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case r.known:
		l.since = now.Add(-r.behind)
	case l.since.IsZero():
		l.since = now
	}
	return now.Sub(l.since).Seconds()
}
