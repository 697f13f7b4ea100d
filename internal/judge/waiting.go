package judge

import (
	"slices"
	"time"

	"github.com/purser-registry/purser/internal/policy"
)

// waiting returns why the policy, though it is on, deletes nothing at this time of what it
// selects, as a code and in words; "" if it may delete.
func (a *Applied) waiting(now time.Time) (Code, string) {
	switch {
	case a.Unreported != "":
		return NoReporter, a.Unreported
	case a.Unconfirmed != "":
		return AwaitsConfirmation, a.Unconfirmed
	case now.Before(a.Uncovered):
		return InGrace, "a policy or keep rule was taken away, and what it kept stays until " + Stamp(a.Uncovered)
	case a.ActiveFrom == nil:
	case now.Before(*a.ActiveFrom):
		return InGrace, "its grace period lasts until " + Stamp(*a.ActiveFrom)
	case !a.Announced:
		return InGrace, "no run has announced it yet"
	}
	if a.Capped != "" {
		return Asks, a.Capped
	}
	if open, next := a.Policy.Open(now); !open {
		text := "it is outside its windows"
		if !next.IsZero() {
			text += " until " + next.In(a.Policy.Windows[0].Location()).Format("2006-01-02 15:04 MST")
		}
		return OutsideWindow, text
	}
	return "", ""
}

// WaitBegun returns whether a policy that could delete tags when they were judged waits by
// now.
func (r *Rules) WaitBegun(now time.Time) bool {
	return slices.ContainsFunc(r.Policies, func(a Applied) bool {
		_, waited := a.waiting(r.Now)
		_, waits := a.waiting(now)
		return a.Policy.Mode == "" && waited == "" && waits != ""
	})
}

// Undecided returns whether a policy observes or waits, so that a run must find out what
// would be deleted.
func (r *Rules) Undecided() bool {
	return slices.ContainsFunc(r.Policies, func(a Applied) bool {
		_, waits := a.waiting(r.Now)
		return a.Policy.Mode == policy.Observe || a.Policy.Mode == "" && waits != ""
	})
}

// Waits returns whether the code says that the policy that selects a tag waits.
func (c Code) Waits() bool {
	switch c {
	case Asks, InGrace, OutsideWindow, NoReporter, AwaitsConfirmation:
		return true
	default:
		return false
	}
}
