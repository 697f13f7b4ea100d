package gc

import "time"

// GaugesExpiry is the age from which on the gauges leave out what was read last.
const GaugesExpiry = gaugesExpiry

// Age lets time pass since the gauges last read the database.
func (g *Gauges) Age(d time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.taken = g.taken.Add(-d)
}
