package pullstats

import "time"

const (
	// clockSamples is the number of recent clock measurements of which the method measure
	// uses the most exact one.
	clockSamples = 8
	// clockSlack is how far the clock's offset in use may be from the measured offset, beyond
	// the error of the measurement, before the method measure corrects it.
	clockSlack = 2 * time.Millisecond
)

type clockSample struct{ offset, trip time.Duration }

// now returns the present time by the clock of the statistics' database.
func (p *presence) now() time.Time {
	if p == nil {
		return time.Now()
	}
	return p.wall().Add(time.Duration(p.offset.Load()))
}

// measure adds a measurement of the clock. Among the last clockSamples measurements, the one
// with the shortest round trip is the most exact. measure adopts the offset of this one if it
// differs from the offset in use by more than half of its round trip plus clockSlack.
//
// A measurement that differs from all earlier ones by more than a round trip shows that one of
// the clocks was set. Then the earlier ones are of no use.
func (p *presence) measure(s clockSample) {
	for _, other := range p.samples {
		if (other.offset - s.offset).Abs() > (other.trip+s.trip)/2+clockSet {
			p.samples = nil
			break
		}
	}
	p.samples = append(p.samples, s)
	if len(p.samples) > clockSamples {
		p.samples = p.samples[1:]
	}
	best := s
	for _, other := range p.samples {
		if other.trip < best.trip {
			best = other
		}
	}
	off := best.offset - time.Duration(p.offset.Load())
	if off.Abs() > best.trip/2+clockSlack {
		p.offset.Store(int64(best.offset))
	}
}

// clockSet is the least difference between two measurements, beyond their errors, that shows
// that a clock was set.
const clockSet = 100 * time.Millisecond
