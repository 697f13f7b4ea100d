package policies

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/policy"
)

// grace returns the length of a policy's grace period; nil if it has none.
func (p *Store) grace(of policy.Policy) *time.Duration {
	length := p.Grace
	if of.GraceGiven() {
		length = of.Grace.Duration()
	}
	if of.Mode != "" || of.Method == policy.UntaggedManifests || length == 0 {
		return nil
	}
	return &length
}

// Announced returns whether the policy, in its version, was announced in the namespace.
func (l *Set) Announced(s Saved) bool { return l.announcements[s.ID] == s.Version }

// NeedsTally returns whether a run must count what the policy would delete.
func (l *Set) NeedsTally(s Saved) bool {
	return s.Problem == "" && s.Policy.Mode == "" && s.ActiveFrom != nil && !l.Announced(s)
}

// keepAnnounced lets a policy that was saved unchanged stay announced, where it was, and what was
// confirmed of it stay confirmed.
func keepAnnounced(ctx context.Context, tx pgx.Tx, id string, version int64) error {
	for _, table := range []string{"autopruneannouncements", "autoprunerests"} {
		if _, err := tx.Exec(ctx, "UPDATE "+table+" SET version = version + 1 WHERE policy = $1 AND version = $2", id, version); err != nil {
			return err
		}
	}
	return nil
}
