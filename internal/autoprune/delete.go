package autoprune

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/autoprune/snapshot"
	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/worker"
)

// If the deletion of a batch of tags fails maxGivingWay times in succession because other
// transactions have locked rows, the worker leaves the repository to the next run.
const maxGivingWay = 20

// deleteBatch deletes the tags in `list` by calls of `del`, which deletes the tags in
// `part`. If other transactions have locked rows of the repository (errBusy), it waits a
// moment and tries again with half as many tags per call, so that clients don't wait for
// pruning. It returns errBusy after maxGivingWay failures in succession.
func (v *repositoryRun) deleteBatch(ctx context.Context, verdict *judge.Verdict, list []candidate,
	del func(ctx context.Context, verdict *judge.Verdict, part []candidate) error,
) error {
	size, busy := len(list), 0
	for len(list) > 0 {
		n := min(size, len(list))
		err := v.judgeFirst(ctx, list[:n])
		if err == nil {
			err = v.slice.begin(ctx)
		}
		if err == nil {
			err = del(ctx, verdict, list[:n])
		}
		switch {
		case err == nil:
			list, busy = list[n:], 0
			continue
		case !errors.Is(err, errBusy):
			return err
		}
		v.slice.p.metrics.busy.Inc()
		if busy++; busy >= maxGivingWay {
			return err
		}
		size = max(1, n/2)
		if err := worker.Sleep(ctx, rand.N(50*time.Millisecond)); err != nil {
			return err
		}
	}
	return nil
}

// deleteTags deletes the tags in `part`, which aren't attached to other images, except tags
// that the verdict now keeps because a client has used them meanwhile (lookAgain).
func (v *repositoryRun) deleteTags(ctx context.Context, verdict *judge.Verdict, part []candidate) error {
	look, part, err := v.lookAgain(ctx, verdict, part)
	if err != nil || len(part) == 0 {
		return err
	}
	return v.inTx(ctx, look, func(deletionTx) ([]candidate, error) { return part, nil })
}

// deleteAttached deletes two kinds of tags: tags attached to an image that no tag reaches
// any more, directly or through an index, and orphans, whose image is missing. The
// transaction that deletes them first locks rows and checks again that no tag reaches the
// image, or that the orphan's image is missing. Before that, lookAgain drops orphans that
// the verdict now keeps because a client has used them meanwhile.
func (v *repositoryRun) deleteAttached(ctx context.Context, verdict *judge.Verdict, part []candidate) error {
	look, part, err := v.lookAgain(ctx, verdict, part)
	if err != nil || len(part) == 0 {
		return err
	}
	return v.inTx(ctx, look, func(q deletionTx) ([]candidate, error) {
		var list []candidate
		free, err := v.freeImages(ctx, q, part)
		if err != nil {
			return nil, err
		}
		absent, alone, err := v.missingImages(ctx, q, part)
		if err != nil {
			return nil, err
		}
		for _, g := range part {
			d, named := judge.AttachedTo(g.Name)
			switch {
			case !g.Judged.Orphan() && free[g.Judged.Image],
				g.Judged.Orphan() && alone[g.Manifest] && (!named || absent[d]):
				list = append(list, g)
			}
		}
		v.stillReached = v.stillReached || len(list) < len(part)
		return list, nil
	})
}

// freeImages locks the images of the attached tags in `part`. It returns those images that
// no tag reaches, neither directly nor through an index.
func (v *repositoryRun) freeImages(ctx context.Context, q deletionTx, part []candidate) (map[int64]bool, error) {
	images := make(map[int64]bool)
	for _, g := range part {
		if !g.Judged.Orphan() {
			images[g.Judged.Image] = true
		}
	}
	if len(images) == 0 {
		return nil, nil
	}
	free, err := q.LockImages(ctx, v.target, slices.Sorted(maps.Keys(images)))
	if err != nil {
		return nil, err
	}
	clear(images)
	for _, id := range free {
		images[id] = true
	}
	return images, nil
}

// missingImages looks once more for the images of the orphans in `part` (attached tags
// whose image was missing), while no client can push to the repository. `absent` says of
// each digest in the orphans' names whether the repository has no manifest with it. `alone`
// has those of the orphans' manifests whose subject isn't in the repository, or that have
// no subject.
func (v *repositoryRun) missingImages(ctx context.Context, q deletionTx, part []candidate) (absent map[oci.DigestPrefix]bool, alone map[int64]bool, err error) {
	var digests []oci.DigestPrefix
	var manifests []int64
	for _, g := range part {
		if !g.Judged.Orphan() {
			continue
		}
		manifests = append(manifests, g.Manifest)
		if d, named := judge.AttachedTo(g.Name); named {
			digests = append(digests, d)
		}
	}
	if len(manifests) == 0 {
		return nil, nil, nil
	}
	return q.BlockPushes(ctx, v.target, digests, manifests)
}

// inTx deletes the tags that the function `choose` returns, except those that were used since
// `look`, and writes the audit log and the run's counts, in one transaction that locks the task.
// It first writes the audit log
// and then locks the run's rows. A deadlock would need another transaction that has locked
// the rows of this unfinished run and waits for the audit log; there is none.
func (v *repositoryRun) inTx(ctx context.Context, look lastLook, choose func(q deletionTx) ([]candidate, error)) error {
	u := v.slice
	var held []candidate
	var deleted, tags int64
	var after *caps
	if !v.counted {
		tags = v.uncounted()
	}
	err := u.p.deletion(ctx, func(q deletionTx) error {
		at, err := u.p.lockTaskAndPolicies(ctx, q.Tx, u.task)
		if err != nil {
			return err
		}
		if v.rules.WaitBegun(at) {
			return errOutdated
		}
		holds, err := q.LockRepository(ctx, v.target)
		if err != nil {
			return err
		}
		if err := v.stillReported(ctx, q.Tx); err != nil {
			return err
		}
		list, err := choose(q)
		if err == nil && holds {
			list, held, err = q.dropHeld(ctx, v.target, list)
		}
		if err == nil {
			list, err = look.drop(ctx, list)
		}
		if err != nil || len(list) == 0 {
			return err
		}
		batch, policies, sets, err := v.batch(list)
		if err != nil {
			return err
		}
		gone, err := q.DeleteTags(audit.WithSource(ctx, audit.Source{Actor: audit.ActorAutoprune}), batch)
		if err != nil {
			return err
		}
		counts := make(map[string]int64)
		for i, n := range gone {
			if n > 0 {
				deleted += n
				counts[policies[i]] += n
			}
		}
		if deleted == 0 {
			return nil
		}
		if after, err = v.deletedBy(ctx, q.Tx, sets, gone); err != nil {
			return err
		}
		return v.record(ctx, q.Tx, deleted, tags, counts, after)
	})
	if full, ok := errors.AsType[*cappedError](err); ok {
		u.stopCapped(full)
		return errOutdated
	}
	if err != nil {
		if after != nil && !errors.Is(err, errBusy) {
			// The deletion may have been committed, and only the answer was lost.
			u.setCaps(after)
		}
		return err
	}
	u.countHeld(held...)
	v.counted = v.counted || deleted > 0
	if after != nil {
		u.setCaps(after)
	}
	u.renewed = time.Now()
	u.deleted += deleted
	u.p.metrics.deleted.Add(float64(deleted))
	return nil
}

// prunedReason says why a policy deleted a tag, in the form that the audit log stores.
type prunedReason struct {
	Code     judge.Code `json:"code"`
	Reason   string     `json:"reason"`
	Policies []string   `json:"policies"` // all policies that took it
}

// prunedDetail is the JSON detail of the audit entry of a deleted tag: why the tag was
// deleted, and the times that an undo needs to restore it.
type prunedDetail struct {
	prunedReason
	Created time.Time  `json:"created_at"`
	Updated *time.Time `json:"updated_at"`
	Expires *time.Time `json:"expires_at"`
}

// batch converts the tags in `list` to a tagBatch for DeleteTags, with the details for
// their audit entries. The results `policies` and `sets` have, for each element of b.Reasons,
// the id of the policy to which the reason refers, and all policies that select these tags.
func (v *repositoryRun) batch(list []candidate) (b tagBatch, policies []string, sets []judge.PolicySet, err error) {
	type why struct {
		judge.Decision
		reason string
	}
	b = tagBatch{
		Target: v.target, Tags: make([]snapshot.TagRow, len(list)), Why: make([]int32, len(list)),
		Run: v.slice.task.run,
	}
	places := make(map[why]int32)
	for i := range list {
		g := &list[i]
		w := why{g.decision, g.reason}
		place, known := places[w]
		if !known {
			r, err := v.reason(g)
			if err != nil {
				return b, nil, nil, err
			}
			place = int32(len(b.Reasons))
			places[w], b.Reasons = place, append(b.Reasons, r)
			policies, sets = append(policies, v.saved[g.decision.Policy].ID), append(sets, g.decision.Policies)
		}
		b.Tags[i], b.Why[i] = g.TagRow, place
	}
	return b, policies, sets, nil
}

// reason returns why a tag is deleted, for its audit entry.
func (v *repositoryRun) reason(g *candidate) (r batchReason, err error) {
	why := prunedReason{Code: g.decision.Code, Reason: g.reason}
	for place := range g.decision.Policies.All() {
		why.Policies = append(why.Policies, v.saved[place].ID)
	}
	detail, err := json.Marshal(why)
	if err != nil {
		return r, fmt.Errorf("writing why tag %s of %s is deleted: %w", g.Name, v.target.Path, err)
	}
	r.Detail = string(detail)
	r.Policy, _ = uuid.Parse(v.saved[g.decision.Policy].ID) // the catalog's ids are UUIDs
	return r, nil
}

// begin creates the run's row in autopruneruns, if it doesn't exist, and queues the notice
// that the run starts to delete. It must be called before the first deletion.
func (u *timeSlice) begin(ctx context.Context) error {
	if u.begun {
		return nil
	}
	told := false
	err := u.p.deletion(ctx, func(q deletionTx) error {
		if _, err := u.p.lockTaskAndPolicies(ctx, q.Tx, u.task); err != nil {
			return err
		}
		if err := u.makeRun(ctx, q.Tx); err != nil {
			return err
		}
		done, err := q.Tx.Exec(ctx, "UPDATE autopruneruns SET announced = true WHERE id = $1 AND NOT announced", u.task.run)
		if err != nil {
			return fmt.Errorf("recording a run: %w", err)
		}
		if err := u.storeCaps(ctx, q.Tx); err != nil {
			return err
		}
		if told = done.RowsAffected() > 0 && u.p.opt.Notify != nil; told {
			return u.p.opt.Notify(ctx, q.Tx, EventStarted, u.started())
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
