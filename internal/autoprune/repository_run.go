package autoprune

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/autoprune/snapshot"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/judge"
)

// repositoryRun is the work of one time slice in one repository.
type repositoryRun struct {
	slice        *timeSlice
	target       catalog.Repository
	saved        []policies.Saved // the policies of the rules, in the same order
	rules        judge.Rules      // by which the tags are judged
	observed     observed
	tallies      map[string]tally // by policy
	pages        int              // number of pages that were read
	cut          bool             // the time slice ended early: another has to continue in this repository
	stillReached bool             // attached tags were kept because a tag still reaches their image

	// earlierDeleted is how many tags of this repository earlier time slices of the same run
	// have deleted. earlierTags is how many of its tags they have added to the number of
	// tags in the run's row.
	earlierDeleted, earlierTags int64
	tags                        int64 // number of tags when the run came to the repository
	counted                     bool  // the run's row includes tags

	// judging is how long Evaluate took for the repository. `deleting` is when the deletion
	// began, measured from the start of the time slice without pauses (busy). Zero: not yet
	// known.
	judging, deleting time.Duration
	// finishing says that the worker is now deleting tags attached to images that have lost
	// their tags. It must finish this work in the present time slice: a later time slice
	// couldn't tell an image that has lost its tags in this run from an image that never
	// had a tag and keeps its signatures.
	finishing bool
}

// findEarlier reads earlierDeleted and earlierTags from the database. Only the first
// repository of a time slice can have been begun by an earlier time slice.
func (v *repositoryRun) findEarlier(ctx context.Context) error {
	u := v.slice
	first := u.task.resumed && !u.visited
	if u.visited = true; !first {
		return nil
	}
	err := u.p.db.Pool.QueryRow(ctx, "SELECT deleted, tags FROM autopruneruns_repositories WHERE run = $1 AND repository_id = $2",
		u.task.run, v.target.ID).Scan(&v.earlierDeleted, &v.earlierTags)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("looking for what the run has done in %s: %w", v.target.Path, err)
	}
	return nil
}

// uncounted returns how many tags of the repository the run's row doesn't include yet.
func (v *repositoryRun) uncounted() int64 { return max(0, v.tags-v.earlierTags) }

// alive renews the lease on the task. From the second page of tags on, it also returns
// errGone if the repository was deleted.
func (v *repositoryRun) alive(ctx context.Context) error {
	if err := v.slice.alive(ctx); err != nil {
		return err
	}
	if v.pages++; v.pages == 1 {
		return nil
	}
	return v.slice.p.stillThere(ctx, v.target)
}

// stillThere returns errGone if the repository was deleted.
func (p *Pruner) stillThere(ctx context.Context, t catalog.Repository) error {
	var lives bool
	err := p.opt.Background.Pool.QueryRow(ctx, "SELECT EXISTS (SELECT FROM live_repositories WHERE id = $1)", t.ID).Scan(&lives)
	if err != nil {
		return fmt.Errorf("looking for repository %s: %w", t.Path, err)
	}
	if !lives {
		return errGone
	}
	return nil
}

// step is called now and then (snapshot.TagReader.Step). When the time slice is over, it pauses the
// slice for other namespaces (share). Once the deletion of the repository's tags has taken
// as long as Evaluate took, it instead ends the slice with errSliceOver; not earlier,
// because the next time slice has to evaluate the repository again. While `finishing` is
// set, it doesn't end the slice.
func (v *repositoryRun) step(ctx context.Context) error {
	u := v.slice
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case !u.over(), v.finishing && u.nested:
		return nil
	case !v.finishing && v.deleting != 0 && u.busy()-v.deleting >= v.judging:
		return errSliceOver
	}
	return u.share(ctx)
}

// prune judges the repository's tags and deletes those that the verdict selects. It first
// deletes tags that aren't attached, batch by batch. Then it deletes tags attached to
// images that no tag reaches any more (directly or through an index), and orphans, whose
// image is missing. Its snapshot stays open and is read again for the deletion, so that the
// verdict on each tag needn't be kept in memory. The transactions that delete skip tags
// that have changed since the snapshot.
func (v *repositoryRun) prune(ctx context.Context, s *snapshot.Snapshot, rules judge.Rules) error {
	u := v.slice
	rules.Now = s.Now
	v.rules = rules
	r := v.reader(s, rules.Policies)
	defer func() { u.page = r.Memory }()
	began := u.busy()
	verdict, err := judge.Evaluate(rules, r.Repository(ctx))
	if err == nil && rules.Undecided() {
		err = v.observe(ctx, r, rules, verdict)
	}
	if errors.Is(err, errSliceOver) {
		v.cut = true
		return nil
	}
	if err != nil {
		return err
	}
	r.Verdicts = []*judge.Verdict{verdict}
	v.deleting = u.busy()
	v.judging = v.deleting - began
	for _, n := range verdict.Notices() {
		u.notices[v.saved[n.Policy].ID] = n.Text
	}
	v.tags = v.earlierDeleted + r.Seen
	if !verdict.HasCandidates() {
		return nil
	}
	attached := false
	err = v.each(ctx, r, verdict, func(g candidate) bool {
		attached = attached || g.attached
		return !g.attached
	}, v.deleteTags)
	if err != nil || !attached && !verdict.ImagesGo() {
		return err
	}
	v.finishing = true
	cut := v.cut
	for before := int64(-1); u.deleted > before; { // a deleted attached tag may have been the image of others
		before, v.cut, v.stillReached = u.deleted, false, false
		if err := v.each(ctx, r, verdict, func(g candidate) bool { return g.attached }, v.deleteAttached); err != nil {
			return err
		}
		if cut = cut || v.cut; v.cut || !v.stillReached {
			break
		}
	}
	v.cut = cut
	return nil
}

// reader returns a reader of the repository's tags, which uses the buffer of the time slice.
func (v *repositoryRun) reader(s *snapshot.Snapshot, applied []judge.Applied) *snapshot.TagReader {
	r := v.slice.p.Repositories.Tags(s, applied, v.alive)
	r.Step, r.Memory = v.step, v.slice.page
	return r
}

// candidate is a tag that may be deleted, and why.
type candidate struct {
	snapshot.Tag
	decision judge.Decision
	reason   string
	attached bool // it belongs to an image, in the repository or missing
}

// each passes the tags that the verdict deletes, and for which `want` returns true, to the
// function `del` in batches, until all tags were read or the time slice is over.
func (v *repositoryRun) each(ctx context.Context, r *snapshot.TagReader, verdict *judge.Verdict, want func(candidate) bool,
	del func(ctx context.Context, verdict *judge.Verdict, batch []candidate) error,
) error {
	batch := v.slice.batch[:0]
	defer func() { v.slice.batch = batch }()
	flush := func() error {
		if len(batch) == 0 {
			return nil
		}
		list := batch
		batch = batch[:0]
		return v.deleteBatch(ctx, verdict, list, del)
	}
	for read, err := range r.Tags(ctx) {
		if errors.Is(err, errSliceOver) {
			v.cut = true
			break
		}
		if err != nil {
			return err
		}
		t := candidate{Tag: read}
		d := verdict.Decide(t.Judged)
		if d.Code == judge.Held && !v.finishing {
			v.slice.countHeld(t)
		}
		if !d.Delete {
			continue
		}
		t.decision, t.attached = d, t.Judged.Attached() || t.Judged.Orphan()
		if !want(t) {
			continue
		}
		t.reason = verdict.Reason(t.Judged, d)
		if batch = append(batch, t); len(batch) < v.slice.p.opt.Batch {
			continue
		}
		if err := flush(); err != nil {
			return err
		}
	}
	return flush()
}
