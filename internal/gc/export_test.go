package gc

import (
	"context"
	"time"
)

// Patience is how long a reviewer tries again while others keep it from a lock.
const Patience = patience

// Yields says whether the reviewer tries again after err, and pauses before that.
func (r *Reviewer) Yields(ctx context.Context, err error) bool { return r.yields(ctx, err) }

// GaugesExpiry is the age from which on the gauges leave out what was read last.
const GaugesExpiry = gaugesExpiry

// Age lets time pass since the gauges last read the database.
func (g *Gauges) Age(d time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.taken = g.taken.Add(-d)
}
