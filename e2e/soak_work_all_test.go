//go:build all

package e2e

import (
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// owner is a worker that has repositories of its own.
type owner struct {
	*worker
	repos []*ownRepo
	lost  *image // the last image that lost a tag: it is about to be collected
}

func (o *owner) some(rng *rand.Rand) *ownRepo { return o.repos[rng.IntN(len(o.repos))] }

// work does one randomly chosen kind of operation after the other, until the traffic ends.
func (o *owner) work() {
	for o.traffic.Err() == nil {
		r := o.some(o.rng)
		switch n := o.rng.IntN(100); {
		case n < 36:
			o.push(r, o.choose())
		case n < 48:
			o.pushReferrer(r)
		case n < 58:
			o.tagAgain(r)
		case n < 66:
			o.deleteTag(r)
		case n < 74:
			o.deleteManifest(r)
		case n < 82:
			o.deleteBlob(r)
		case n < 91:
			o.dangle(r.name)
		default:
			o.check(r.sample(o.rng))
		}
	}
}

// choose returns a random image. In a third of all cases this is the image that lost a tag
// last, which garbage collection is about to delete.
func (o *owner) choose() *image {
	if o.lost != nil && o.rng.IntN(3) == 0 {
		return o.lost
	}
	return o.universe.images[o.rng.IntN(len(o.universe.images))]
}

// push puts an image under a tag of the repository. The tag may be new, or point to this or
// another image already.
func (o *owner) push(r *ownRepo, m *image) {
	if !r.usable(m) {
		return
	}
	tag := r.pick(o.rng)
	same := slices.Contains(r.tagsOf(m.Digest), tag)
	var released []*hold
	by, became := o.put(r.name, tag, m, func() {
		if !same {
			released = r.release(tag)
		}
	})
	o.settle(r, tag, m, released, by, became, same)
}

// settle records the outcome of the put of a tag.
func (o *owner) settle(r *ownRepo, tag string, m *image, released []*hold, by endpoint, became outcome, same bool) {
	for _, h := range released {
		o.lost = h.image
	}
	switch {
	case became == putUnknown:
		if same { // a put that comes late may undo another change
			released = r.release(tag)
		}
		r.doubt(released, tag, m)
	case same:
	case became == putDone:
		r.set(tag, m, by)
	default:
		r.restore(released, by)
	}
}

// tagAgain puts a held manifest (one that must exist, see hold) under another tag, without
// pushing its blobs and children. The repository has all of them, so the registry must accept
// the manifest.
func (o *owner) tagAgain(r *ownRepo) {
	h := r.tagged(o.rng)
	by, ok := o.any()
	if h == nil || !ok {
		return
	}
	tag := r.pick(o.rng)
	same := tag == h.tag || slices.Contains(r.tagsOf(h.image.Digest), tag)
	var released []*hold
	if !same {
		released = r.release(tag)
	}
	_, status := o.ask(by, call{request: request{method: "PUT", path: manifestPath(r.name, tag), body: h.image.text,
		header: map[string]string{"Content-Type": h.image.MediaType}, want: http.StatusCreated}, about: h.image.Digest.String()})
	became := putUnknown
	if status != 0 {
		became = putDone
	}
	o.settle(r, tag, h.image, released, by, became, same)
}

// pushReferrer puts a manifest that has a subject. By chance, the subject exists, is about to
// be deleted, is pushed only after the referrer, or never exists.
func (o *owner) pushReferrer(r *ownRepo) {
	subject := v1.Descriptor{MediaType: v1.MediaTypeImageManifest, Digest: digest.FromString("never"), Size: 5}
	var later *image
	switch h := r.sample(o.rng); {
	case h != nil && o.rng.IntN(4) > 0:
		subject = h.image.Descriptor
	case o.rng.IntN(2) == 0:
		later = o.choose()
		subject = later.Descriptor
	case o.lost != nil && o.rng.IntN(2) == 0:
		subject = o.lost.Descriptor
	}
	m := o.universe.newReferrer(o.rng, subject)
	if !r.usable(m) {
		return
	}
	by, became := o.put(r.name, m.Digest.String(), m, nil)
	if later != nil {
		o.push(r, later)
		by, became = o.put(r.name, m.Digest.String(), m, nil)
	}
	if became == putDone {
		r.refer(m, subject.Digest, by)
	}
}

func (o *owner) deleteTag(r *ownRepo) {
	h := r.tagged(o.rng)
	if h == nil {
		return
	}
	released := r.release(h.tag)
	o.lost = h.image
	if _, status := o.anywhere(call{request: request{method: "DELETE", path: manifestPath(r.name, h.tag),
		want: http.StatusAccepted}, about: h.image.Digest.String()}); status == 0 {
		r.doubt(released, "", nil)
	}
}

// deleteManifest deletes a randomly chosen manifest by its digest. The manifest may have tags,
// be a referrer, be listed by an index (then the registry must refuse), or not exist.
func (o *owner) deleteManifest(r *ownRepo) {
	m := o.universe.images[o.rng.IntN(len(o.universe.images))]
	if h := r.sample(o.rng); h != nil && o.rng.IntN(3) > 0 {
		m = h.image
	}
	inIndex, tags := r.inIndex(m.Digest), r.tagsOf(m.Digest)
	at, ok := o.any()
	if !ok {
		return
	}
	var released []*hold
	if !inIndex {
		released = r.release(tags...)
		r.drop(m.Digest)
	}
	_, status := o.ask(at, call{request: request{method: "DELETE", path: manifestPath(r.name, m.Digest.String()),
		want: http.StatusAccepted}, also: []int{http.StatusNotFound, http.StatusConflict}})
	switch {
	case status == 0:
		r.spoil(m.Digest)
		r.doubt(released, "", nil)
	case inIndex && status != http.StatusConflict:
		o.violate([]string{r.name, m.Digest.String()}, "deleting %s, which is in an index that is tagged, was answered %d", m.Digest, status)
	case len(released) > 0 && status == http.StatusNotFound:
		o.violate([]string{r.name, m.Digest.String()}, "%s:%s isn't there any more, though it has a tag", r.name, m.Digest)
	case status == http.StatusConflict:
		r.restore(released, at)
	}
}

// deleteBlob deletes a blob from a repository. The registry must refuse this as long as a
// manifest of the repository uses the blob.
func (o *owner) deleteBlob(r *ownRepo) {
	b := o.universe.blob(o.rng)
	if h := r.sample(o.rng); h != nil && o.rng.IntN(2) == 0 && len(h.image.blobs) > 0 {
		b = h.image.blobs[o.rng.IntN(len(h.image.blobs))]
	}
	used := r.uses(b.Digest)
	_, status := o.anywhere(call{request: request{method: "DELETE", path: blobPath(r.name, b.Digest.String()),
		want: http.StatusAccepted}, also: []int{http.StatusNotFound, http.StatusConflict}})
	switch {
	case status == 0:
		r.mu.Lock()
		r.unlinked[b.Digest] = true
		r.mu.Unlock()
	case used && status != http.StatusConflict:
		o.violate([]string{r.name, b.Digest.String()}, "deleting blob %s of %s, which uses it, was answered %d", b.Digest, r.name, status)
	}
}

// mayBeUnlinked returns whether an earlier request, which got no answer, may still delete the
// blob from the repository.
func (s *soak) mayBeUnlinked(repo string, b *blobContent) bool {
	for _, o := range s.owners {
		for _, r := range o.repos {
			if r.name == repo {
				r.mu.Lock()
				defer r.mu.Unlock()
				return r.unlinked[b.Digest]
			}
		}
	}
	return false
}

// verify pulls random images that must exist, until the traffic ends.
func (w *worker) verify() {
	for w.traffic.Err() == nil {
		o := w.owners[w.rng.IntN(len(w.owners))]
		w.check(o.some(w.rng).sample(w.rng))
		w.sleep(time.Duration(w.rng.IntN(20)) * time.Millisecond)
	}
}

// stale is the longest time after a change for which a replica may answer with the former
// state: seenWithin, and as much again for a busy machine.
const stale = 2 * seenWithin

// check pulls a held manifest (one that must exist, see hold) from a random replica. It fails
// the soak if the manifest isn't complete, unless a worker has released the manifest
// meanwhile.
func (w *worker) check(h *hold) {
	at, ok := w.any()
	if !ok || h == nil {
		return
	}
	w.checkAt(at, h)
}

func (w *worker) checkAt(at endpoint, h *hold) {
	known := at.replica == h.by.replica && at.life == h.by.life || time.Since(h.since) > stale
	what, ok := "", true
	if h.tag == "" {
		what, ok = w.listed(at, h)
	} else {
		what, ok = w.isTag(at, h, known)
	}
	if ok {
		what, ok = w.pull(at, h.repo.name, h.image)
	}
	if ok || what == "" || !h.lasts() {
		return
	}
	w.violate([]string{h.repo.name + "/manifests/" + h.tag, h.image.Digest.String(), h.subject.String(), what},
		"%s:%s%s should be %s, held since %v, but %s has lost or changed %s", h.repo.name, h.tag, h.subject,
		h.image.Digest, h.since.Format("15:04:05.000"), at.name, what)
}

// isTag checks that the tag of h points to the manifest of h. `known` says whether the replica
// must know this value of the tag already; otherwise any answer is right. If the tag is wrong,
// `what` names it; if no answer came, `what` is empty and ok is false.
func (w *worker) isTag(at endpoint, h *hold, known bool) (what string, ok bool) {
	res, status := w.ask(at, call{request: request{method: "GET", path: manifestPath(h.repo.name, h.tag),
		header: map[string]string{"Accept": manifestTypes}, want: http.StatusOK}, also: []int{http.StatusNotFound}})
	switch {
	case status == 0:
		return "", false
	case status == http.StatusOK && digest.FromBytes(res.body) == h.image.Digest:
		return "", true
	case !known:
		return "", true
	}
	return "the tag", false
}

// listed asks for the referrers of the subject of h, and returns whether the manifest of h is
// among them. If it isn't, `what` says so; if no answer came, `what` is empty and ok is false.
func (w *worker) listed(at endpoint, h *hold) (what string, ok bool) {
	res, status := w.ask(at, call{request: request{method: "GET", want: http.StatusOK,
		path: "/v2/" + h.repo.name + "/referrers/" + h.subject.String()}})
	if status == 0 {
		return "", false
	}
	var list v1.Index
	if err := json.Unmarshal(res.body, &list); err != nil {
		w.violate(nil, "the list of referrers isn't one: %v", err)
		return "", false
	}
	if slices.ContainsFunc(list.Manifests, func(d v1.Descriptor) bool { return d.Digest == h.image.Digest }) {
		return "", true
	}
	return "the list of referrers", false
}

// pull pulls an image completely, and compares all content with its digests. If something is
// missing, `what` is its digest and ok is false; if no answer came, `what` is empty and ok is
// false.
func (w *worker) pull(at endpoint, repo string, m *image) (what string, ok bool) {
	get := func(path string, want v1.Descriptor, stored bool) (string, bool) {
		res, status := w.ask(at, call{request: request{method: "GET", path: path, want: http.StatusOK,
			header: map[string]string{"Accept": manifestTypes}}, also: []int{http.StatusNotFound}, stored: stored})
		if status == http.StatusOK && digest.FromBytes(res.body) != want.Digest {
			w.violate([]string{path}, "%s: the content isn't what its digest says", path)
		}
		if status == http.StatusNotFound {
			return want.Digest.String(), false
		}
		return "", status == http.StatusOK
	}
	if what, ok = get(manifestPath(repo, m.Digest.String()), m.Descriptor, false); !ok {
		return what, ok
	}
	for _, b := range m.blobs {
		if what, ok = get(blobPath(repo, b.Digest.String()), b.Descriptor, true); !ok {
			return what, ok
		}
	}
	for _, child := range m.children {
		if what, ok = w.pull(at, repo, child); !ok {
			return what, ok
		}
	}
	w.stats.count("pulled")
	return "", true
}
