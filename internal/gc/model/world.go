package model

import "fmt"

// manifest is what one digest in one repository is. The rows of layers, of
// gc_blobs_layers and of gc_blobs_configurations come and go with the row of
// manifests, by the same statements, and stand for themselves in it.
type manifest struct {
	name       string
	repository int
	config     int   // blob; none: -1
	layers     []int // blobs
	children   []int // manifests
	subject    int   // manifest; none: -1
}

// blobs are what the manifest refers to, in the order of digests.
func (m manifest) blobs() (list set) {
	if m.config >= 0 {
		list |= one(m.config)
	}
	for _, b := range m.layers {
		list |= one(b)
	}
	return list
}

// world is what there is to work with, and where its rows are.
type world struct {
	repositories int
	blobs        int
	manifests    []manifest
	tags         []int // each one's repository
	uploads      int
	perUpload    int // objects that an upload may make

	rows                                              int
	atRepository, atBlob, atLink, atManifest, atChild int
	atTag, atBlobReview, atReview, atUpload           int
	atDoomed, atDoomedUpload, atSubjectKey            int
}

func (w *world) layout() {
	next := 0
	take := func(at *int, n int) { *at, next = next, next+n }
	take(&w.atRepository, w.repositories)
	take(&w.atBlob, w.blobs)
	take(&w.atLink, w.repositories*w.blobs)
	take(&w.atManifest, len(w.manifests))
	take(&w.atChild, len(w.manifests)*2)
	take(&w.atTag, len(w.tags))
	take(&w.atBlobReview, w.blobs)
	take(&w.atReview, len(w.manifests)*generations)
	take(&w.atUpload, w.uploads)
	take(&w.atDoomed, w.keys())
	take(&w.atDoomedUpload, w.uploads)
	take(&w.atSubjectKey, len(w.manifests))
	w.rows = next
	if next > maxRows || len(w.manifests) > maxSlots || w.keys() > maxKeys ||
		len(w.manifests)*generations > 32 || w.repositories*w.blobs > 32 {
		panic(fmt.Sprintf("model: the world is too large: %d rows", next))
	}
}

func (w *world) keys() int { return w.uploads * w.perUpload }

func (w *world) repository(r int) int   { return w.atRepository + r }
func (w *world) blob(b int) int         { return w.atBlob + b }         // value: storage key + 1
func (w *world) link(l int) int         { return w.atLink + l }         // repository_blobs
func (w *world) manifest(m int) int     { return w.atManifest + m }     // value: generation
func (w *world) child(m, i int) int     { return w.atChild + 2*m + i }  // manifest_references; value: identity + 1
func (w *world) tag(t int) int          { return w.atTag + t }          // value: identity + 1
func (w *world) blobReview(b int) int   { return w.atBlobReview + b }   // gc_blob_review_queue
func (w *world) review(id int) int      { return w.atReview + id }      // gc_manifest_review_queue
func (w *world) upload(u int) int       { return w.atUpload + u }       // value: attempt + 1
func (w *world) doomed(k int) int       { return w.atDoomed + k }       // gc_doomed_objects
func (w *world) doomedUpload(u int) int { return w.atDoomedUpload + u } // the same, of_upload

// subjectKey is the advisory lock of a manifest's digest. It has no row.
func (w *world) subjectKey(m int) int { return w.atSubjectKey + m }

func (w *world) linkOf(r, b int) int { return r*w.blobs + b }

// An identity is manifests.id: it names the row of a digest in one generation.
func identity(slot int, generation uint8) int { return slot*generations + int(generation) - 1 }
func slotOf(id int) int                       { return id / generations }
func generationOf(id int) uint8               { return uint8(id%generations) + 1 }

func (w *world) rowName(row int) string {
	for _, part := range []struct {
		at, n int
		name  func(i int) string
	}{
		{w.atRepository, w.repositories, func(i int) string { return fmt.Sprintf("repository %d", i) }},
		{w.atBlob, w.blobs, func(i int) string { return "blob " + blobName(i) }},
		{w.atLink, w.repositories * w.blobs, func(i int) string { return w.linkName(i) }},
		{w.atManifest, len(w.manifests), func(i int) string { return "manifest " + w.manifests[i].name }},
		{w.atChild, 2 * len(w.manifests), func(i int) string { return fmt.Sprintf("child %d of %s", i%2, w.manifests[i/2].name) }},
		{w.atTag, len(w.tags), func(i int) string { return fmt.Sprintf("tag %d", i) }},
		{w.atBlobReview, w.blobs, func(i int) string { return "review of blob " + blobName(i) }},
		{w.atReview, generations * len(w.manifests), func(i int) string { return "review of " + w.idName(i) }},
		{w.atUpload, w.uploads, func(i int) string { return fmt.Sprintf("upload %d", i) }},
		{w.atDoomed, w.keys(), func(i int) string { return fmt.Sprintf("doomed object %d", i) }},
		{w.atDoomedUpload, w.uploads, func(i int) string { return fmt.Sprintf("doomed upload %d", i) }},
		{w.atSubjectKey, len(w.manifests), func(i int) string { return "the digest of " + w.manifests[i].name }},
	} {
		if row >= part.at && row < part.at+part.n {
			return part.name(row - part.at)
		}
	}
	return fmt.Sprint("row ", row)
}

func blobName(b int) string { return string(rune('a' + b)) }

func (w *world) linkName(l int) string {
	return fmt.Sprintf("link of repository %d to blob %s", l/w.blobs, blobName(l%w.blobs))
}

func (w *world) idName(id int) string {
	name := w.manifests[slotOf(id)].name
	if g := generationOf(id); g > 1 {
		return fmt.Sprintf("%s (put again, %d)", name, g)
	}
	return name
}

// The values of a row in a review queue: how long until review_after. A longer
// one is greater, so that GREATEST is max.
const (
	due   uint8 = iota + 1
	soon        // a cascade's delay, or LockedPause
	later       // the delay of a promise
)

// The values of a row of gc_doomed_objects: what it waits for, whether again_at
// is set, and which object of an upload is to be kept.
const (
	sweepDue   uint8 = 1
	sweepAgain uint8 = 2 // until the longest request is over
	sweepHeld  uint8 = 3 // claimed; the claim's mark is added to it
	sweepWhat  uint8 = 7
	againSet   uint8 = 8
	keepShift        = 4
)

// users are the manifests of the rows given that refer to blob b.
func (w *world) users(b int, row func(int) uint8) (list set) {
	for slot, m := range w.manifests {
		if row(w.manifest(slot)) != 0 && m.blobs().has(b) {
			list |= one(slot)
		}
	}
	return list
}

// usedIn says whether a manifest of the link's repository uses its blob.
func (w *world) usedIn(l int, row func(int) uint8) bool {
	for slot, m := range w.manifests {
		if m.repository == l/w.blobs && row(w.manifest(slot)) != 0 && m.blobs().has(l%w.blobs) {
			return true
		}
	}
	return false
}

// tagged, parent and subject say what holds the manifest with an identity.
func (w *world) tagged(id int, row func(int) uint8) bool {
	for t := range w.tags {
		if int(row(w.tag(t))) == id+1 {
			return true
		}
	}
	return false
}

func (w *world) parent(id int, row func(int) uint8) bool {
	for slot, m := range w.manifests {
		for i := range m.children {
			if row(w.manifest(slot)) != 0 && int(row(w.child(slot, i))) == id+1 {
				return true
			}
		}
	}
	return false
}

func (w *world) subject(id int, row func(int) uint8) bool {
	s := w.manifests[slotOf(id)].subject
	return s >= 0 && row(w.manifest(s)) != 0
}

// holding says whether the manifest with an identity has a child or a referrer.
func (w *world) holding(id int, row func(int) uint8) bool {
	if len(w.manifests[slotOf(id)].children) > 0 {
		return true
	}
	for slot, m := range w.manifests {
		if m.subject == slotOf(id) && row(w.manifest(slot)) != 0 {
			return true
		}
	}
	return false
}

// circle returns what holds the manifest with an identity, directly or not, and
// whether it is a circle: it is among its own holders, none of which has a tag.
func (w *world) circle(id int, row func(int) uint8) (holders set, circular bool) {
	direct := func(id int) (list set) {
		for slot, m := range w.manifests {
			g := row(w.manifest(slot))
			for i := range m.children {
				if g != 0 && int(row(w.child(slot, i))) == id+1 {
					list |= one(identity(slot, g))
				}
			}
		}
		if w.subject(id, row) {
			s := w.manifests[slotOf(id)].subject
			list |= one(identity(s, row(w.manifest(s))))
		}
		return list
	}
	holders = direct(id)
	for before := set(0); before != holders; {
		before = holders
		before.each(func(id int) { holders |= direct(id) })
	}
	tagged := false
	holders.each(func(id int) { tagged = tagged || w.tagged(id, row) })
	return holders, holders.has(id) && !tagged
}

// there says whether the row with an identity is.
func (w *world) there(id int, row func(int) uint8) bool {
	return row(w.manifest(slotOf(id))) == generationOf(id)
}
