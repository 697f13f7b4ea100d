package clock

import (
	"fmt"
	"time"

	"github.com/purser-registry/purser/internal/worker"
)

// Disagreement says why nothing may be deleted for its age. It wraps [worker.ErrRest].
type Disagreement struct {
	Text string // a clause, such as "the database's clock is 2h behind"
	// Doubt says that it lasts until somebody confirms the database's clock.
	Doubt bool
}

// Error implements error.
func (d *Disagreement) Error() string {
	if d.Doubt {
		return d.Text + "; if the database's clock is right now, run: purser clock confirm"
	}
	return d.Text
}

// Unwrap returns worker.ErrRest.
func (d *Disagreement) Unwrap() error { return worker.ErrRest }

// clockTime writes a time for people, in UTC.
func clockTime(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// ahead says how far a clock is ahead of another one, or behind.
func ahead(d time.Duration) string {
	if d < 0 {
		return span(-d) + " behind"
	}
	return span(d) + " ahead of"
}

// span writes a duration for people: the two greatest units.
func span(d time.Duration) string {
	d = d.Round(time.Second)
	switch days, hours := d/(24*time.Hour), d%(24*time.Hour)/time.Hour; {
	case days > 0 && hours > 0:
		return fmt.Sprintf("%dd %dh", days, hours)
	case days > 0:
		return fmt.Sprintf("%dd", days)
	}
	return d.String()
}
