package autoprune

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/oci"
)

// tagReader reads a repository for evaluation, page by page.
type tagReader struct {
	p      *Pruner
	s      *snapshot
	target catalog.Repository
	saved  []Saved // the policies, in the order of the rules
	// alive is called before each page of tags is read, and step for every stepTags-th tag.
	// If one of these two functions returns an error, the reading ends with that error.
	alive, step func(ctx context.Context) error
	seen        int64 // number of tags in the last pass
	pageSize    int   // 0: Options.Page

	exemptions *bool // whether the repository has exemptions; nil: not known yet

	// memory is the buffer for a page of tags. Reading the next page overwrites it, so
	// loops over tags must not nest.
	memory []candidate
	// all has the repository's tags after they were read once, if they fit into `memory` as
	// one page. Then complete is set, and later passes over the tags use `all` instead of
	// reading the database. That is correct because a snapshot doesn't change.
	all      []candidate
	complete bool
	// verdicts are set after the evaluation. From then on, tags that one of them deletes are
	// asked for holds, page by page.
	verdicts []*judge.Verdict
	asked    bool // the tags in `all` were asked for holds
}

// repository returns the repository as Evaluate reads it.
func (r *tagReader) repository(ctx context.Context) judge.Repository {
	return r.s.withContents(ctx, judge.Repository{
		Tags: func(yield func(judge.Tag, error) bool) {
			for t, err := range r.tags(ctx) {
				if !yield(t.tag, err) {
					return
				}
			}
		},
		Parents: func(manifests []int64) ([]judge.Reference, error) {
			links, err := r.s.Parents(ctx, manifests)
			list := make([]judge.Reference, len(links))
			for i, l := range links {
				list[i] = judge.Reference{Parent: l.Keeper, Child: l.Kept}
			}
			return list, err
		},
		Held: r.heldManifests(ctx),
	}, func(ctx context.Context) error {
		if err := r.alive(ctx); err != nil {
			return err
		}
		return r.step(ctx)
	})
}

// tags yields the repository's tags in the order of their names.
func (r *tagReader) tags(ctx context.Context) iter.Seq2[candidate, error] {
	return func(yield func(candidate, error) bool) {
		r.seen = 0
		size := cmp.Or(r.pageSize, r.p.opt.Page)
		for last := ""; ; {
			page, err := r.all, error(nil)
			if !r.complete {
				page, err = r.page(ctx, last, size)
			}
			if err != nil {
				yield(candidate{}, err)
				return
			}
			if last == "" && len(page) < size {
				r.all, r.complete = page, true
			}
			if err := r.fillHolds(ctx, page); err != nil {
				yield(candidate{}, err)
				return
			}
			r.seen += int64(len(page))
			for i := range page {
				if err := r.pace(ctx, i); err != nil {
					yield(candidate{}, err)
					return
				}
				if !yield(page[i], nil) {
					return
				}
			}
			if len(page) < size {
				return
			}
			last = page[len(page)-1].Name
		}
	}
}

// The function step is called for every stepTags-th tag. It reads the clock, which takes as
// long as judging a tag without patterns, so calling it for each tag would double the time.
// stepTags must not be large either, because judging a tag by patterns may take a
// millisecond.
const stepTags = 16

// pace calls step for every stepTags-th tag.
func (r *tagReader) pace(ctx context.Context, i int) error {
	if i%stepTags != 0 {
		return nil
	}
	return r.step(ctx)
}

func (r *tagReader) page(ctx context.Context, last string, size int) ([]candidate, error) {
	if err := r.alive(ctx); err != nil {
		return nil, err
	}
	page := r.memory[:0]
	err := r.s.Tags(ctx, last, size, func(t tagRow) {
		if len(page) == cap(page) { // append would grow a long page by a quarter only, and copy it often
			page = slices.Grow(page, max(64, len(page)))
		}
		page = append(page, candidate{tagRow: t, tag: judge.Tag{Name: t.Name, Created: t.Pushed, Manifest: t.Manifest, Image: t.Subject, Immutable: t.Immutable}})
	})
	if r.memory = page; err != nil {
		return nil, err
	}
	for _, fill := range []func(context.Context, []candidate) error{r.fillImages, r.fillExemptions, r.fillManifests, r.fillAttributes, r.fillUses} {
		if err := fill(ctx, page); err != nil {
			return nil, err
		}
	}
	return page, nil
}

// fillImages sets Tag.Image of those tags on the page whose name refers to an image.
func (r *tagReader) fillImages(ctx context.Context, page []candidate) error {
	var digests []oci.DigestPrefix
	for i := range page {
		if d, ok := judge.AttachedTo(page[i].Name); ok {
			digests = append(digests, d)
		}
	}
	if len(digests) == 0 {
		return nil
	}
	found, err := r.s.Manifests(ctx, digests)
	if err != nil {
		return err
	}
	for i := range page {
		d, ok := judge.AttachedTo(page[i].Name)
		if !ok {
			continue
		}
		if id, there := found[d]; there {
			page[i].tag.Image = id
		} else if page[i].tag.Image == 0 {
			page[i].tag.Image = judge.MissingImage
		}
	}
	return nil
}

// fillExemptions sets Tag.Exempt from the exemptions that undos have stored. An exemption is valid
// as long as the policy has the same rule.
func (r *tagReader) fillExemptions(ctx context.Context, page []candidate) error {
	if r.exemptions == nil {
		r.exemptions = new(bool)
		err := r.s.QueryRow(ctx, "SELECT EXISTS (SELECT FROM autopruneexemptions WHERE repository_id = $1)", r.target.ID).Scan(r.exemptions)
		if err != nil {
			return fmt.Errorf("looking for restored tags of %s: %w", r.target.Path, err)
		}
	}
	if !*r.exemptions || len(page) == 0 {
		return nil
	}
	places := make(map[int64]int, len(page))
	ids := make([]int64, len(page))
	for i := range page {
		places[page[i].ID], ids[i] = i, page[i].ID
	}
	rows, err := r.s.Query(ctx, `
		SELECT tag_id, policy, version FROM autopruneexemptions WHERE repository_id = $1 AND tag_id = ANY ($2)`,
		r.target.ID, ids)
	if err != nil {
		return fmt.Errorf("looking for restored tags of %s: %w", r.target.Path, err)
	}
	var id, version int64
	var policy string
	_, err = pgx.ForEachRow(rows, []any{&id, &policy, &version}, func() error {
		t := &page[places[id]]
		for place, s := range r.saved {
			if s.ID == policy && s.rule <= version || s.bound != nil || s.ID == freeName {
				t.tag.Exempt = t.tag.Exempt.With(place)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("looking for restored tags of %s: %w", r.target.Path, err)
	}
	return nil
}

// fillManifests sets the media types, artifact types and sizes of the tags on the page, if a
// policy needs them.
func (r *tagReader) fillManifests(ctx context.Context, page []candidate) error {
	if len(page) == 0 || !slices.ContainsFunc(r.saved, func(s Saved) bool { return s.Policy.ReadsManifests() }) {
		return nil
	}
	ids := make([]int64, len(page))
	for i := range page {
		ids[i] = page[i].Manifest
	}
	slices.Sort(ids)
	found, err := r.s.Sizes(ctx, slices.Compact(ids))
	if err != nil {
		return err
	}
	for i := range page {
		t := &page[i].tag
		m, ok := found[page[i].Manifest]
		if !ok {
			return fmt.Errorf("tag %s of %s has no manifest", t.Name, r.target.Path)
		}
		t.MediaType, t.ArtifactType, t.Size = m.MediaType, m.ArtifactType, m.Size
	}
	return nil
}

// fillUses sets the last-used times of those tags on the page that a max_bytes policy considers,
// or that a last_pulled policy or a keep rule usedWithin considers and that were pushed before
// its age.
func (r *tagReader) fillUses(ctx context.Context, page []candidate) error {
	if r.p.opt.Used == nil {
		return nil
	}
	var asked []*judge.Tag
	for i := range page {
		if err := r.pace(ctx, i); err != nil {
			return err
		}
		for p := range r.saved {
			if own := &r.saved[p].Policy; own.ReadsUse(page[i].Pushed, r.s.Now) && (page[i].tag.ConsideredBy(own, p) || page[i].tag.InDoubtBy(own, p)) {
				asked = append(asked, &page[i].tag)
				break
			}
		}
	}
	if len(asked) == 0 {
		return nil
	}
	err := r.p.opt.Used(ctx, r.target.ID, asked)
	for _, t := range asked {
		t.CountUnknown(r.s.Now)
	}
	return err
}
