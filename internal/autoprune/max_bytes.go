package autoprune

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// A max_bytes policy keeps the most recently used tags that fit into its bytes. It orders the
// tags that it counts by their last use, from the most recent, and adds up what they store; each
// manifest and blob counts once. The first tag at which the sum exceeds its bytes, and all tags
// that were used earlier, are selected. This is the same as deleting the least recently used tag
// again and again until what remains fits.
//
// The policy counts fewer tags than it may delete. It doesn't count a tag that a policy by age or
// last use might take, that an undo has restored, or of which the last use isn't known. The sum
// up to any tag is then smaller, so the policy selects fewer of the others. So none of these
// makes the policy delete a tag that it would otherwise keep. A tag that isn't counted is selected
// if a counted tag is selected that was used more recently. Protection rules, keep rules and holds
// don't change what is counted.
//
// A tag's last use is known if it isn't before the pull statistics began. Otherwise the tag may
// have been used at any time between its push and that beginning. So every tag whose last use
// is known was used more recently, and this is enough to select the tag if those don't fit.

// weighedTag is a tag that max_bytes policies count.
type weighedTag struct {
	rank     // by last use
	manifest int64
	counted  PolicySet // the policies that count it
}

// weighBatch is how many manifests or blobs settleBytes asks for in one call.
const weighBatch = 1000

// weigh notes a tag, which isn't attached, for the max_bytes policies that count it.
func (v *Verdict) weigh(t *Tag) {
	var counted PolicySet
	for i := range v.rules {
		r := &v.rules[i]
		if r.policy.method == MaxBytes && !r.inactive && r.rests == "" && !t.Exempt.Has(i) && r.considers(t) && !(r.policy.orphans && t.orphan()) {
			counted = counted.with(i)
		}
	}
	if counted == 0 || v.takenFirst(t) {
		return
	}
	if v.unplaced(t) {
		for i := range counted.All() {
			v.rules[i].unplaced++
		}
		return
	}
	v.weighed = append(v.weighed, weighedTag{rank{t.lastUse(), t.Name}, t.Manifest, counted})
}

// unplaced returns whether it isn't known when the tag was last used.
func (v *Verdict) unplaced(t *Tag) bool { return t.UseUnknown || t.lastUse().Before(v.pulls.Since) }

// settleBytes finds for each max_bytes policy the most recently used tag that doesn't fit into
// its bytes.
func (v *Verdict) settleBytes(repository Repository, attached []attachedTag) error {
	if len(v.weighed) == 0 {
		return nil
	}
	if repository.Kept == nil || repository.Contents == nil || repository.BlobSizes == nil {
		return errors.New("autoprune: max_bytes policies need to know what manifests store")
	}
	slices.SortFunc(v.weighed, func(a, b weighedTag) int { return b.compare(a.rank) })
	of := make(map[int64][]int64)
	for _, c := range attached {
		of[c.image] = append(of[c.image], c.manifest)
	}
	for i := range v.rules {
		r := &v.rules[i]
		if r.policy.method != MaxBytes || r.inactive || r.rests != "" {
			continue
		}
		s := scales{repository: repository, attached: of, weighed: make(map[int64]bool), blobs: make(map[string]bool)}
		var err error
		if r.beyond, r.full, err = s.exceeds(v.weighed, i, r.policy.bytes); err != nil {
			return err
		}
		v.hasCandidates = v.hasCandidates || r.full && r.waits == ""
	}
	v.weighed = nil
	return nil
}

// judgeBytes says whether a max_bytes policy selects a tag that it considers.
func (r *rule) judgeBytes(t *Tag) (code Code, selected bool) {
	if r.full && !t.UseUnknown && (rank{t.lastUse(), t.Name}).compare(r.beyond) <= 0 {
		return BeyondBytes, true
	}
	return WithinBytes, false
}

func (v *Verdict) bytesReason(t *Tag, r *rule, code Code) string {
	limit := formatSize(r.policy.bytes)
	last := fmt.Sprintf("last used at %s", stamp(t.lastUse()))
	if v.unplaced(t) {
		last = fmt.Sprintf("no use recorded since %s", stamp(v.pulls.Since))
	}
	switch {
	case code == BeyondBytes:
		return fmt.Sprintf("%s, not among the most recently used tags%s that fit into %s", last, v.ofWhich(r), limit)
	case t.UseUnknown:
		return "it isn't known when it was last used"
	case v.unplaced(t):
		return fmt.Sprintf("not counted: %s, so it isn't known when it was last used", last)
	}
	return fmt.Sprintf("%s, among the most recently used tags%s that fit into %s", last, v.ofWhich(r), limit)
}

// unplacedNotice says how many tags a max_bytes policy doesn't count because it isn't known when
// they were last used; "" for none.
func (v *Verdict) unplacedNotice(i int) string {
	r := &v.rules[i]
	if r.unplaced == 0 {
		return ""
	}
	return fmt.Sprintf("it doesn't count %d tags, because they were neither pushed nor used since pull statistics began at %s, or it can't be found out now when they were used",
		r.unplaced, stamp(v.pulls.Since))
}

// scales add up what manifests store, with what they keep from garbage collection: the manifests
// that an index lists, the referrers of an image, and what tags attached to it point to.
type scales struct {
	repository Repository
	attached   map[int64][]int64 // manifests of attached tags, by image
	weighed    map[int64]bool    // manifests that are in the sum
	blobs      map[string]bool   // blobs that are in the sum
	sum        int64             // at most math.MaxInt64
}

// load is a manifest that isn't in the sum yet.
type load struct {
	Content
	kept []int64 // manifests that it keeps
}

// exceeds returns the rank of the first tag at which the tags that policy i counts, in their
// order, store more than `limit` bytes. ok is false if they don't.
func (s *scales) exceeds(tags []weighedTag, i int, limit int64) (beyond rank, ok bool, err error) {
	for begin := 0; begin < len(tags); {
		end := begin
		batch := make(map[int64]*load)
		for ; end < len(tags) && len(batch) < weighBatch; end++ {
			if t := &tags[end]; t.counted.Has(i) && !s.weighed[t.manifest] {
				batch[t.manifest] = nil
			}
		}
		sizes, err := s.read(batch)
		if err != nil {
			return rank{}, false, err
		}
		for _, t := range tags[begin:end] {
			if !t.counted.Has(i) {
				continue
			}
			if s.add(t.manifest, batch, sizes); s.sum > limit {
				return t.rank, true, nil
			}
		}
		begin = end
	}
	return rank{}, false, nil
}

// read reads the manifests that are the keys of the map, and adds those that they keep. It
// returns the sizes of their blobs that aren't in the sum yet.
func (s *scales) read(batch map[int64]*load) (sizes map[string]int64, err error) {
	var level []int64
	for id := range batch {
		level = append(level, id)
	}
	sizes = make(map[string]int64)
	var unknown []string
	for len(level) > 0 {
		slices.Sort(level)
		part := level[:min(weighBatch, len(level))]
		level = level[len(part):]
		contents, err := s.repository.Contents(part)
		if err != nil {
			return nil, err
		}
		for _, id := range part {
			batch[id] = &load{Content: Content{Manifest: id}, kept: slices.Clone(s.attached[id])}
		}
		for _, c := range contents {
			batch[c.Manifest].Content = c
			for _, b := range c.Blobs {
				if _, known := sizes[b]; !known && !s.blobs[b] {
					sizes[b] = 0
					unknown = append(unknown, b)
				}
			}
		}
		references, err := s.repository.Kept(part)
		if err != nil {
			return nil, err
		}
		for _, r := range references {
			batch[r.Parent].kept = append(batch[r.Parent].kept, r.Child)
		}
		for _, id := range part {
			for _, kept := range batch[id].kept {
				if _, known := batch[kept]; !known && !s.weighed[kept] {
					batch[kept] = nil
					level = append(level, kept)
				}
			}
		}
	}
	for part := range slices.Chunk(unknown, weighBatch) {
		found, err := s.repository.BlobSizes(part)
		if err != nil {
			return nil, err
		}
		for b, size := range found {
			sizes[b] = size
		}
	}
	return sizes, nil
}

// add adds a manifest, and what it keeps, to the sum.
func (s *scales) add(manifest int64, batch map[int64]*load, sizes map[string]int64) {
	stack := []int64{manifest}
	for len(stack) > 0 {
		id := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if s.weighed[id] {
			continue
		}
		s.weighed[id] = true
		m := batch[id]
		s.plus(m.Size)
		for _, b := range m.Blobs {
			if !s.blobs[b] {
				s.blobs[b] = true
				s.plus(sizes[b])
			}
		}
		stack = append(stack, m.kept...)
	}
}

func (s *scales) plus(size int64) {
	s.sum += min(max(0, size), math.MaxInt64-s.sum)
}
