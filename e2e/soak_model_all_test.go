//go:build all

package e2e

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
)

// ownRepo is a repository whose tags only one worker writes. So this worker knows to which
// manifests they point, whatever other workers do at the same time.
//
// If a request for a tag got no answer, the registry may execute it at any later time. Then
// nobody knows to which manifest the tag points, and the worker doesn't use this tag again; it
// still knows the values of all other tags.
type ownRepo struct {
	name string

	mu        sync.Mutex
	tags      map[string]*hold
	referrers map[digest.Digest]*hold
	// doubtful has the tags whose value isn't known, with the manifests to which each tag may
	// point; the tag may also not exist.
	doubtful map[string][]*image
	// If a request to delete something got no answer, the registry may still execute it later.
	// spoiled are the manifests, and unlinked the blobs, that such a request may still delete
	// from the repository.
	spoiled, unlinked map[digest.Digest]bool
	names             int
}

// hold is the claim that a manifest must exist completely, with everything that it refers to,
// because it has a tag or is a referrer of another manifest that must exist. Such a manifest
// is called held.
type hold struct {
	repo  *ownRepo
	tag   string // "" for a referrer
	image *image
	// subject is the digest of the manifest's subject, if the manifest is held as a referrer.
	subject digest.Digest
	since   time.Time
	by      endpoint // the replica that has acknowledged the manifest
	over    bool     // guarded by repo.mu
}

func newOwnRepo(name string) *ownRepo {
	return &ownRepo{name: name, tags: map[string]*hold{}, referrers: map[digest.Digest]*hold{},
		doubtful: map[string][]*image{}, spoiled: map[digest.Digest]bool{}, unlinked: map[digest.Digest]bool{}}
}

// lasts returns whether the manifest has been held ever since `h` was created, that is, whether
// no worker has released it.
func (h *hold) lasts() bool {
	h.repo.mu.Lock()
	defer h.repo.mu.Unlock()
	return !h.over
}

// set records that a tag points to an image; `by` is the replica that has acknowledged this.
func (r *ownRepo) set(tag string, m *image, by endpoint) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tags[tag] = &hold{repo: r, tag: tag, image: m, since: time.Now(), by: by}
}

// refer records that a referrer was put. The referrer is held from now on if its subject is
// held.
func (r *ownRepo) refer(m *image, subject digest.Digest, by endpoint) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if h := r.referrers[m.Digest]; h == nil && r.held()[subject] {
		r.referrers[m.Digest] = &hold{repo: r, image: m, subject: subject, since: time.Now(), by: by}
	}
}

// release records that tags are about to change. From now on the registry may delete the
// manifests to which the tags point, and everything that is held only because of these tags.
// It returns the holds of the tags.
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

// drop records that the referrer with the digest d is about to be deleted, so that it is no
// longer held, nor are its own referrers.
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

// held returns the digests of all manifests that must exist because of the repository's tags:
// those to which a tag points, the children of these at any depth, and the referrers of all of
// them.
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

// restore records that the tags in `released`, which release has returned, haven't changed
// after all.
func (r *ownRepo) restore(released []*hold, by endpoint) {
	for _, h := range released {
		r.set(h.tag, h.image, by)
	}
}

// doubt records that a request got no answer, so that nobody knows whether it was executed. If
// m isn't nil, the request was to point `tag` to the image m; if m is nil, it was to delete
// the tags in `released`. These tags may still point to their former images.
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

// spoil records that an earlier request, which got no answer, may still delete the manifest
// with the digest d.
func (r *ownRepo) spoil(d digest.Digest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.spoiled[d] = true
}

// usable returns whether a worker may put the image: it returns false if an earlier request,
// which got no answer, may still delete the image or one of its children.
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

// mostTags is the largest number of tags of an ownRepo to which the worker knows the manifest.
const mostTags = 5

// pick returns the name of a tag to write: a new one, or one of which the worker knows to
// which manifest it points.
func (r *ownRepo) pick(rng *rand.Rand) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.tags) < mostTags && (len(r.tags) == 0 || rng.IntN(2) == 0) {
		r.names++
		return fmt.Sprintf("t%d", r.names)
	}
	return r.someTag(rng).tag
}

// sample returns the hold of a random tag or referrer, nil if no manifest is held.
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

// tagged returns the hold of a random tag, nil if the repository has no tag of known value.
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

// all returns all held manifests.
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

// tagsOf returns the tags that point to the manifest with this digest.
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

// inIndex returns whether a tag points to an index that lists the manifest with this digest.
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

// uses returns whether a held manifest, or a child of one, uses the blob with this digest.
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
