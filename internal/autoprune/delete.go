package autoprune

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/oci"
)

// maxGivingWay is how often a batch gives way in a row before the repository is
// left to the next run.
const maxGivingWay = 20

// deleteBatch deletes a batch, in smaller and smaller parts while others are in the
// way: what clients do goes first.
func (v *visit) deleteBatch(ctx context.Context, verdict *Verdict, list []going,
	del func(ctx context.Context, verdict *Verdict, part []going) error,
) error {
	size, busy := len(list), 0
	for len(list) > 0 {
		n := min(size, len(list))
		err := v.turn.begin(ctx)
		if err == nil {
			err = del(ctx, verdict, list[:n])
		}
		switch {
		case err == nil:
			list, busy = list[n:], 0
			continue
		case !errors.Is(err, catalog.ErrTargetBusy):
			return err
		}
		v.turn.p.metrics.busy.Inc()
		if busy++; busy >= maxGivingWay {
			return err
		}
		size = max(1, n/2)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(rand.N(50 * time.Millisecond)):
		}
	}
	return nil
}

// deleteTags deletes tags of images, after a last look at whether they were used.
func (v *visit) deleteTags(ctx context.Context, verdict *Verdict, part []going) error {
	part, err := v.lookAgain(ctx, verdict, part)
	if err != nil || len(part) == 0 {
		return err
	}
	return v.inTx(ctx, func(catalog.Pruning) ([]going, error) { return part, nil })
}

// lookAgain drops the tags that were used since they were judged.
func (v *visit) lookAgain(ctx context.Context, verdict *Verdict, part []going) ([]going, error) {
	if v.turn.p.opt.Used == nil {
		return part, nil
	}
	var asked []*Tag
	for i := range part {
		for place := range part[i].decision.Policies.All() {
			if v.saved[place].Policy.Method() == LastPulled {
				asked = append(asked, &part[i].tag)
				break
			}
		}
	}
	if len(asked) == 0 {
		return part, nil
	}
	if err := v.turn.p.opt.Used(ctx, v.target.ID, asked); err != nil {
		return nil, err
	}
	var kept []going
	for _, g := range part {
		if g.decision = verdict.Decide(g.tag); g.decision.Delete {
			g.reason = verdict.Reason(g.tag, g.decision)
			kept = append(kept, g)
		}
	}
	return kept, nil
}

// deleteCompanions deletes companions of images that no tag reaches, and of those
// that aren't there, as that is at this moment.
func (v *visit) deleteCompanions(ctx context.Context, _ *Verdict, part []going) error {
	return v.inTx(ctx, func(q catalog.Pruning) ([]going, error) {
		var list []going
		free, err := v.freeImages(ctx, q, part)
		if err != nil {
			return nil, err
		}
		absent, alone, err := v.missingImages(ctx, q, part)
		if err != nil {
			return nil, err
		}
		for _, g := range part {
			d, named := CompanionOf(g.Name)
			switch {
			case g.tag.Image != MissingImage && free[g.tag.Image],
				g.tag.Image == MissingImage && named && absent[d],
				g.tag.Image == MissingImage && !named && alone[g.Manifest]:
				list = append(list, g)
			}
		}
		v.held = v.held || len(list) < len(part)
		return list, nil
	})
}

// freeImages are the images of companions that no tag reaches.
func (v *visit) freeImages(ctx context.Context, q catalog.Pruning, part []going) (map[int64]bool, error) {
	images := make(map[int64]bool)
	for _, g := range part {
		if g.tag.Image != MissingImage {
			images[g.tag.Image] = true
		}
	}
	if len(images) == 0 {
		return nil, nil
	}
	free, err := q.HoldImages(ctx, v.target, slices.Sorted(maps.Keys(images)))
	if err != nil {
		return nil, err
	}
	clear(images)
	for _, id := range free {
		images[id] = true
	}
	return images, nil
}

func (v *visit) missingImages(ctx context.Context, q catalog.Pruning, part []going) (map[oci.Digest]bool, map[int64]bool, error) {
	var digests []oci.Digest
	var manifests []int64
	for _, g := range part {
		if g.tag.Image != MissingImage {
			continue
		}
		if d, named := CompanionOf(g.Name); named {
			digests = append(digests, d)
		} else {
			manifests = append(manifests, g.Manifest)
		}
	}
	if len(digests)+len(manifests) == 0 {
		return nil, nil, nil
	}
	return q.HoldRepository(ctx, v.target, digests, manifests)
}

// inTx deletes what choose returns, with the entries of the audit log and the run's
// counts, in one transaction that holds the task.
func (v *visit) inTx(ctx context.Context, choose func(q catalog.Pruning) ([]going, error)) error {
	u := v.turn
	var deleted int64
	err := u.p.catalog.Prune(ctx, func(q catalog.Pruning) error {
		if err := u.p.hold(ctx, q.Tx(), u.task); err != nil {
			return err
		}
		list, err := choose(q)
		if err != nil || len(list) == 0 {
			return err
		}
		tags := make([]catalog.PruneTag, len(list))
		for i := range list {
			tags[i] = list[i].PruneTag
		}
		gone, err := q.Delete(ctx, v.target, tags)
		if err != nil || len(gone) == 0 {
			return err
		}
		deleted = int64(len(gone))
		counts, entries := v.entries(list, gone)
		if err := u.record(ctx, q.Tx(), v.target, deleted, counts); err != nil {
			return err
		}
		return audit.Append(ctx, q.Tx(), entries...)
	})
	if err != nil {
		return err
	}
	u.renewed = time.Now()
	u.deleted += deleted
	u.p.metrics.deleted.Add(float64(deleted))
	return nil
}

// prunedDetail is what the audit log keeps of a tag that a policy deleted, besides
// its name and digest: why, and what an undo needs.
type prunedDetail struct {
	Code     Code       `json:"code"`
	Reason   string     `json:"reason"`
	Policies []string   `json:"policies"` // all that took it
	Created  time.Time  `json:"created_at"`
	Updated  *time.Time `json:"updated_at,omitempty"`
}

// entries are those of the audit log for the tags that are gone, and how many went
// by each policy.
func (v *visit) entries(list []going, gone []catalog.PrunedTag) (map[string]int64, []audit.Entry) {
	why := make(map[int64]*going, len(list))
	for i := range list {
		why[list[i].ID] = &list[i]
	}
	counts := make(map[string]int64)
	entries := make([]audit.Entry, len(gone))
	for i, t := range gone {
		g := why[t.ID]
		detail := prunedDetail{Code: g.decision.Code, Reason: g.reason, Created: t.Created}
		if !t.Updated.IsZero() {
			detail.Updated = &gone[i].Updated
		}
		for place := range g.decision.Policies.All() {
			detail.Policies = append(detail.Policies, v.saved[place].ID)
		}
		policy := v.saved[g.decision.Policy].ID
		counts[policy]++
		entries[i] = audit.Entry{
			Kind: audit.AutopruneTagDelete, Repository: v.target.Path, RepositoryID: v.target.ID, Tag: t.Name,
			Digest: t.Digest, Run: v.turn.task.run, Detail: detail,
		}
		entries[i].Policy, _ = uuid.Parse(policy) // ids of ours are uuids
	}
	return counts, entries
}

// begin makes the run's row and tells that the run begins to delete, before it does.
func (u *turn) begin(ctx context.Context) error {
	if u.begun {
		return nil
	}
	told := false
	err := u.p.catalog.Prune(ctx, func(q catalog.Pruning) error {
		if err := u.p.hold(ctx, q.Tx(), u.task); err != nil {
			return err
		}
		if err := u.makeRun(ctx, q.Tx()); err != nil {
			return err
		}
		done, err := q.Tx().Exec(ctx, "UPDATE autopruneruns SET announced = true WHERE id = $1 AND NOT announced", u.task.run)
		if err != nil {
			return fmt.Errorf("recording a run: %w", err)
		}
		if told = done.RowsAffected() > 0 && u.p.opt.Notify != nil; told {
			return u.p.opt.Notify(ctx, q.Tx(), EventStarted, u.started())
		}
		return nil
	})
	if err != nil {
		return err
	}
	u.begun = true
	if told && u.p.opt.Notified != nil {
		u.p.opt.Notified()
	}
	return nil
}
