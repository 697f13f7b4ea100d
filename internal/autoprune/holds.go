package autoprune

import (
	"context"
	"encoding/json"

	"github.com/purser-registry/purser/internal/autoprune/snapshot"
	"github.com/purser-registry/purser/internal/catalog"
)

// dropHeld looks for holds in a deletion's transaction, after LockRepository has taken the lock
// of deletions, and returns the tags that nobody holds and those that somebody holds. See the
// protocol in package hold.
func (tx deletionTx) dropHeld(ctx context.Context, t catalog.Repository, list []candidate) (free, held []candidate, err error) {
	asked := make([]*snapshot.Tag, len(list))
	for i := range list {
		asked[i] = &list[i].Tag
	}
	by, err := snapshot.HoldersOf(ctx, tx.Tx, t, asked)
	if err != nil || by == nil {
		return list, nil, err
	}
	for i, c := range list {
		if len(by[i]) == 0 {
			free = append(free, c)
			continue
		}
		c.Holders = by[i]
		held = append(held, c)
	}
	return free, held, nil
}

// countHeld adds tags that stay because they are held to the counts of the time slice.
func (u *timeSlice) countHeld(list ...candidate) {
	for _, c := range list {
		u.held++
		for _, h := range c.Holders {
			if u.heldBy == nil {
				u.heldBy = make(map[string]int64)
			}
			if _, known := u.heldBy[h.Reporter]; known || len(u.heldBy) < maxHolders {
				u.heldBy[h.Reporter]++
			}
		}
	}
}

// maxHolders is how many reporters a run names.
const maxHolders = 100

// holders returns the numbers of held tags by reporter as JSON.
func (u *timeSlice) holders() string {
	if len(u.heldBy) == 0 {
		return "{}"
	}
	text, err := json.Marshal(u.heldBy)
	if err != nil {
		return "{}" // a map of texts and numbers is always valid
	}
	return string(text)
}
