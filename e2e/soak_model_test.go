package e2e

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
)

// ownRepo is a repository whose tags one worker alone writes, so that it is
// known what they are, whatever all others do at the same time.
//
// Where the outcome of a request isn't known it may even come later, from a
// connection whose client is dead. Then the names that it concerns are doubtful
// and not used again; all else stays known.
type ownRepo struct {
	name string

	mu        sync.Mutex
	tags      map[string]*hold
	referrers map[digest.Digest]*hold
	// doubtful tags are one of the manifests, or not there.
	doubtful map[string][]*image
	// spoiled are manifests that an earlier request may still delete, or that
	// hold one; unlinked are blobs of which the same is true.
	spoiled, unlinked map[digest.Digest]bool
	names             int
}

// hold is a manifest that must be there, whole: one with a tag, or the referrer
// of one that is held.
type hold struct {
	repo  *ownRepo
	tag   string // "" for a referrer
	image *image
	// subject is what a referrer refers to.
	subject digest.Digest
	since   time.Time
	by      endpoint // that has answered it
	over    bool     // guarded by repo.mu
}

func newOwnRepo(name string) *ownRepo {
	return &ownRepo{name: name, tags: map[string]*hold{}, referrers: map[digest.Digest]*hold{},
		doubtful: map[string][]*image{}, spoiled: map[digest.Digest]bool{}, unlinked: map[digest.Digest]bool{}}
}

// lasts tells whether the manifest has been held all the time since h began.
func (h *hold) lasts() bool {
	h.repo.mu.Lock()
	defer h.repo.mu.Unlock()
	return !h.over
}

// set says that a tag is an image, as the target has answered.
func (r *ownRepo) set(tag string, m *image, by endpoint) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tags[tag] = &hold{repo: r, tag: tag, image: m, since: time.Now(), by: by}
}

// refer says that a referrer was put; it is held if its subject is.
func (r *ownRepo) refer(m *image, subject digest.Digest, by endpoint) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if h := r.referrers[m.Digest]; h == nil && r.held()[subject] {
		r.referrers[m.Digest] = &hold{repo: r, image: m, subject: subject, since: time.Now(), by: by}
	}
}

// release says that tags are about to change: from now on they, and what is held
// through them alone, may be gone. It returns what the tags were.
func (r *ownRepo) release(tags ...string) []*hold {
	r.mu.Lock()
	defer r.mu.Unlock()
	var released []*hold
	for _, tag := range tags {
		if h := r.tags[tag]; h != nil {
			h.over = true
			released = append(released, h)
			delete(r.tags, tag)
		}
	}
	r.prune()
	return released
}

// drop says that a referrer is about to be deleted.
func (r *ownRepo) drop(d digest.Digest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if h := r.referrers[d]; h != nil {
		h.over = true
		delete(r.referrers, d)
		r.prune()
	}
}

func (r *ownRepo) prune() {
	held := r.held()
	for d, h := range r.referrers {
		if !held[d] {
			h.over = true
			delete(r.referrers, d)
		}
	}
}

// held returns every manifest that tags hold: theirs, what is in them, and
// referrers of those.
func (r *ownRepo) held() map[digest.Digest]bool {
	held := map[digest.Digest]bool{}
	for _, h := range r.tags {
		h.image.each(func(m *image) { held[m.Digest] = true })
	}
	for more := true; more; {
		more = false
		for d, h := range r.referrers {
			if !held[d] && held[h.subject] {
				held[d], more = true, true
			}
		}
	}
	return held
}

// restore says that released tags haven't changed after all.
func (r *ownRepo) restore(released []*hold, by endpoint) {
	for _, h := range released {
		r.set(h.tag, h.image, by)
	}
}

// doubt says that the outcome of a request is not known that was to make
// released tags, or new ones, the image m; nil: was to delete them.
func (r *ownRepo) doubt(released []*hold, tag string, m *image) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, h := range released {
		r.doubtful[h.tag] = append(r.doubtful[h.tag], h.image)
	}
	if m != nil {
		r.doubtful[tag] = append(r.doubtful[tag], m)
	}
}

// spoil says that a manifest may be deleted at any time.
func (r *ownRepo) spoil(d digest.Digest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.spoiled[d] = true
}

// usable tells whether an image can be put with a known outcome.
func (r *ownRepo) usable(m *image) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for d := range r.spoiled {
		if m.has(d) {
			return false
		}
	}
	return true
}

// mostTags is how many tags of a known value a repository has.
const mostTags = 5

// pick chooses a tag to write: a new one, or one whose value is known.
func (r *ownRepo) pick(rng *rand.Rand) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.tags) < mostTags && (len(r.tags) == 0 || rng.IntN(2) == 0) {
		r.names++
		return fmt.Sprintf("t%d", r.names)
	}
	return r.someTag(rng).tag
}

// sample chooses one of what is held; nil: nothing is.
func (r *ownRepo) sample(rng *rand.Rand) *hold {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.tags) + len(r.referrers); n == 0 || rng.IntN(n) < len(r.tags) {
		return r.someTag(rng)
	}
	list := make([]*hold, 0, len(r.referrers))
	for _, h := range r.referrers {
		list = append(list, h)
	}
	slices.SortFunc(list, func(a, b *hold) int { return a.since.Compare(b.since) })
	return list[rng.IntN(len(list))]
}

// tagged chooses one of the tags; nil: there are none.
func (r *ownRepo) tagged(rng *rand.Rand) *hold {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.someTag(rng)
}

func (r *ownRepo) someTag(rng *rand.Rand) *hold {
	list := make([]*hold, 0, len(r.tags))
	for _, h := range r.tags {
		list = append(list, h)
	}
	if len(list) == 0 {
		return nil
	}
	slices.SortFunc(list, func(a, b *hold) int { return a.since.Compare(b.since) })
	return list[rng.IntN(len(list))]
}

// all returns everything that is held.
func (r *ownRepo) all() []*hold {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []*hold
	for _, h := range r.tags {
		list = append(list, h)
	}
	for _, h := range r.referrers {
		list = append(list, h)
	}
	return list
}

// tagsOf returns the tags that are the manifest.
func (r *ownRepo) tagsOf(d digest.Digest) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []string
	for tag, h := range r.tags {
		if h.image.Digest == d {
			list = append(list, tag)
		}
	}
	return list
}

// inIndex tells whether a tag holds an index that has the manifest in it.
func (r *ownRepo) inIndex(d digest.Digest) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, h := range r.tags {
		if h.image.Digest != d && h.image.has(d) {
			return true
		}
	}
	return false
}

// uses tells whether something that is held has the blob.
func (r *ownRepo) uses(d digest.Digest) (found bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	look := func(m *image) {
		for _, b := range m.blobs {
			found = found || b.Digest == d
		}
	}
	for _, h := range r.tags {
		h.image.each(look)
	}
	for _, h := range r.referrers {
		h.image.each(look)
	}
	return found
}
