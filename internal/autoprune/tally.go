package autoprune

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/judge"
)

// maxTallied is how many of the tags that a policy would delete its tally names.
const maxTallied = 20

// tally counts the tags that a policy would delete in the repositories that a run has finished.
type tally struct {
	Version  int64    `json:"version"`
	Selected int64    `json:"selected"`
	Tags     []string `json:"tags,omitempty"` // the first maxTallied, as repository:tag
	// Partial says that the tally lacks repositories, because the policy was changed in the
	// middle of the run or a process died.
	Partial bool `json:"partial,omitempty"`
}

func (y *tally) add(other tally) {
	y.Selected += other.Selected
	y.Tags = append(y.Tags, other.Tags[:min(len(other.Tags), maxTallied-len(y.Tags))]...)
}

// loadTallies reads the tallies that earlier time slices of the run have stored, and begins
// those of policies that have none.
func (u *timeSlice) loadTallies(ctx context.Context) error {
	u.tallies = make(map[string]*tally)
	var tallied []policies.Saved
	for _, s := range u.policies.All() {
		if u.policies.NeedsTally(s) {
			tallied = append(tallied, s)
		}
	}
	if len(tallied) == 0 {
		return nil
	}
	if u.task.resumed {
		var stored []byte
		err := u.p.db.Pool.QueryRow(ctx, "SELECT tally FROM autopruneruns WHERE id = $1", u.task.run).Scan(&stored)
		if err == nil && stored != nil {
			err = json.Unmarshal(stored, &u.tallies)
		}
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return fmt.Errorf("reading how far a run has come: %w", err)
		}
	}
	for _, s := range tallied {
		if y := u.tallies[s.ID]; y == nil || y.Version != s.Version {
			u.tallies[s.ID] = &tally{Version: s.Version, Partial: u.task.resumed && u.task.next > 0}
		}
	}
	return nil
}

// storeTallies stores the tallies with the run, for its next time slice.
func (u *timeSlice) storeTallies(ctx context.Context, tx pgx.Tx) error {
	if len(u.tallies) == 0 {
		return nil
	}
	text, err := json.Marshal(u.tallies)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, "UPDATE autopruneruns SET tally = $2 WHERE id = $1", u.task.run, string(text)); err != nil {
		return fmt.Errorf("recording how far a run has come: %w", err)
	}
	return nil
}

// tallyTag counts a tag for the policies that would delete it.
func (v *repositoryRun) tallyTag(name string, policies judge.PolicySet) {
	for place := range policies.All() {
		y := v.slice.tallies[v.saved[place].ID]
		if y == nil {
			continue
		}
		if v.tallies == nil {
			v.tallies = make(map[string]tally)
		}
		mine := v.tallies[v.saved[place].ID]
		if mine.Selected++; len(mine.Tags) < maxTallied {
			mine.Tags = append(mine.Tags, v.target.Path+":"+name)
		}
		v.tallies[v.saved[place].ID] = mine
	}
}
