package snapshot

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/hold"
	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/oci"
)

// TagReader reads a repository for evaluation, page by page.
type TagReader struct {
	// Alive is called before each page of tags is read, and Step for every stepTags-th tag.
	// If one of these two functions returns an error, the reading ends with that error.
	Alive, Step func(ctx context.Context) error
	PageSize    int   // 0: Options.Page
	Seen        int64 // number of tags in the last pass
	// Memory is the buffer for a page of tags, which another reader may use afterwards. Reading the
	// next page overwrites it, so loops over tags must not nest.
	Memory []Tag
	// Verdicts are set after the evaluation. From then on, tags that one of them deletes are
	// asked for holds, page by page.
	Verdicts []*judge.Verdict

	r        *Reader
	s        *Snapshot
	policies []judge.Applied

	exemptions *bool // whether the repository has exemptions; nil: not known yet

	// all has the repository's tags after they were read once, if they fit into Memory as
	// one page. Then complete is set, and later passes over the tags use `all` instead of
	// reading the database. That is correct because a snapshot doesn't change.
	all      []Tag
	complete bool
	asked    bool // the tags in `all` were asked for holds
}

// Tag is a tag as it is read, and as policies judge it.
type Tag struct {
	TagRow
	Judged  judge.Tag
	Holders []hold.Holder // of the tag's image, once it was asked for holds
}

// Tags returns a reader of the tags of a snapshot's repository. The policies are those of the rules by which
// the tags will be judged, in the same order. `alive` is TagReader.Alive and TagReader.Step.
func (r *Reader) Tags(s *Snapshot, policies []judge.Applied, alive func(context.Context) error) *TagReader {
	return &TagReader{r: r, s: s, policies: policies, Alive: alive, Step: alive}
}

// Repository returns the repository as judge.Evaluate reads it.
func (r *TagReader) Repository(ctx context.Context) judge.Repository {
	return r.s.WithContents(ctx, judge.Repository{
		Tags: func(yield func(judge.Tag, error) bool) {
			for t, err := range r.Tags(ctx) {
				if !yield(t.Judged, err) {
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
		if err := r.Alive(ctx); err != nil {
			return err
		}
		return r.Step(ctx)
	})
}

// Tags yields the repository's tags in the order of their names.
func (r *TagReader) Tags(ctx context.Context) iter.Seq2[Tag, error] {
	return func(yield func(Tag, error) bool) {
		r.Seen = 0
		size := cmp.Or(r.PageSize, r.r.Page)
		for last := ""; ; {
			page, err := r.all, error(nil)
			if !r.complete {
				page, err = r.page(ctx, last, size)
			}
			if err != nil {
				yield(Tag{}, err)
				return
			}
			if last == "" && len(page) < size {
				r.all, r.complete = page, true
			}
			if err := r.fillHolds(ctx, page); err != nil {
				yield(Tag{}, err)
				return
			}
			r.Seen += int64(len(page))
			for i := range page {
				if err := r.pace(ctx, i); err != nil {
					yield(Tag{}, err)
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

// The function Step is called for every stepTags-th tag. It reads the clock, which takes as
// long as judging a tag without patterns, so calling it for each tag would double the time.
// stepTags must not be large either, because judging a tag by patterns may take a
// millisecond.
const stepTags = 16

// pace calls Step for every stepTags-th tag.
func (r *TagReader) pace(ctx context.Context, i int) error {
	if i%stepTags != 0 {
		return nil
	}
	return r.Step(ctx)
}

func (r *TagReader) page(ctx context.Context, last string, size int) ([]Tag, error) {
	if err := r.Alive(ctx); err != nil {
		return nil, err
	}
	page := r.Memory[:0]
	err := r.s.Tags(ctx, last, size, func(t TagRow) {
		if len(page) == cap(page) { // append would grow a long page by a quarter only, and copy it often
			page = slices.Grow(page, max(64, len(page)))
		}
		page = append(page, Tag{TagRow: t, Judged: judge.Tag{Name: t.Name, Created: t.Pushed, Manifest: t.Manifest, Image: t.Subject, Immutable: t.Immutable}})
	})
	if r.Memory = page; err != nil {
		return nil, err
	}
	for _, fill := range []func(context.Context, []Tag) error{r.fillImages, r.fillExemptions, r.fillManifests, r.fillAttributes, r.fillUses} {
		if err := fill(ctx, page); err != nil {
			return nil, err
		}
	}
	return page, nil
}

// fillImages sets Tag.Image of those tags on the page whose name refers to an image.
func (r *TagReader) fillImages(ctx context.Context, page []Tag) error {
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
			page[i].Judged.Image = id
		} else if page[i].Judged.Image == 0 {
			page[i].Judged.Image = judge.MissingImage
		}
	}
	return nil
}

// fillExemptions sets Tag.Exempt from the exemptions that undos have stored. An exemption is valid
// as long as the policy has the same rule.
func (r *TagReader) fillExemptions(ctx context.Context, page []Tag) error {
	if r.exemptions == nil {
		r.exemptions = new(bool)
		err := r.s.Tx.QueryRow(ctx, "SELECT EXISTS (SELECT FROM autopruneexemptions WHERE repository_id = $1)", r.s.target.ID).Scan(r.exemptions)
		if err != nil {
			return fmt.Errorf("looking for restored tags of %s: %w", r.s.target.Path, err)
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
	rows, err := r.s.Tx.Query(ctx, `
		SELECT tag_id, policy, version FROM autopruneexemptions WHERE repository_id = $1 AND tag_id = ANY ($2)`,
		r.s.target.ID, ids)
	if err != nil {
		return fmt.Errorf("looking for restored tags of %s: %w", r.s.target.Path, err)
	}
	var id, version int64
	var policy string
	_, err = pgx.ForEachRow(rows, []any{&id, &policy, &version}, func() error {
		t := &page[places[id]]
		for place := range r.policies {
			if r.policies[place].ExemptBy(policy, version) {
				t.Judged.Exempt = t.Judged.Exempt.With(place)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("looking for restored tags of %s: %w", r.s.target.Path, err)
	}
	return nil
}

// fillManifests sets the media types, artifact types and sizes of the tags on the page, if a
// policy needs them.
func (r *TagReader) fillManifests(ctx context.Context, page []Tag) error {
	if len(page) == 0 || !slices.ContainsFunc(r.policies, func(a judge.Applied) bool { return a.Policy.ReadsManifests() }) {
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
		t := &page[i].Judged
		m, ok := found[page[i].Manifest]
		if !ok {
			return fmt.Errorf("tag %s of %s has no manifest", t.Name, r.s.target.Path)
		}
		t.MediaType, t.ArtifactType, t.Size = m.MediaType, m.ArtifactType, m.Size
	}
	return nil
}

// fillUses sets the last-used times of those tags on the page that a max_bytes policy considers,
// or that a last_pulled policy or a keep rule usedWithin considers and that were pushed before
// its age.
func (r *TagReader) fillUses(ctx context.Context, page []Tag) error {
	if r.r.Used == nil {
		return nil
	}
	var asked []*judge.Tag
	for i := range page {
		if err := r.pace(ctx, i); err != nil {
			return err
		}
		for p := range r.policies {
			if own := &r.policies[p].Policy; own.ReadsUse(page[i].Pushed, r.s.Now) && (page[i].Judged.ConsideredBy(own, p) || page[i].Judged.InDoubtBy(own, p)) {
				asked = append(asked, &page[i].Judged)
				break
			}
		}
	}
	if len(asked) == 0 {
		return nil
	}
	err := r.r.Used(ctx, r.s.target.ID, asked)
	for _, t := range asked {
		t.CountUnknown(r.s.Now)
	}
	return err
}
