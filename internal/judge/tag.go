package judge

import (
	"errors"
	"fmt"
	"iter"
	"time"
)

// MissingImage is the [Tag.Image] of a tag whose image isn't in the repository.
const MissingImage = -1

// Tag is a tag with the properties that evaluation needs. Manifest, and Image if it names a
// manifest, are numbers above 0 that identify a manifest within the repository, such as
// ids.
type Tag struct {
	Name string
	// Created is when the tag was last pushed: created, moved to another manifest, or
	// pushed again unchanged.
	Created  time.Time
	Manifest int64
	// Image is the manifest that the tag belongs to: the manifest that AttachedTo finds in
	// the tag's name, or else the subject of the tag's manifest. It is MissingImage if that
	// manifest isn't in the repository, and 0 if the tag belongs to no image. A tag whose
	// image is in the repository is attached, and is deleted with the image. A tag whose
	// image is missing is an orphan; it is judged like any other tag, unless a policy asks
	// for the removal of orphans. A tag whose name contains the digest of its own manifest
	// is also judged like any other, since some tools tag images by their digest.
	Image int64
	// Pulled is when the tag was last pulled, ManifestPulled when the tag's manifest, or
	// a manifest below it in an image index, was last pulled by digest, and Checked when
	// a client last sent a HEAD request for the tag. The zero time means that no such
	// use is known. Only last_pulled and max_bytes policies and the keep rule usedWithin read
	// these times.
	Pulled, ManifestPulled, Checked time.Time
	// UseUnknown says that it can't be found out now when the tag was last used; Pulled is then
	// the present time. Policies by last use don't select the tag. Those that count tags don't
	// count it.
	UseUnknown bool
	// MediaType, ArtifactType and Size (in bytes, with all that the manifest references) are
	// properties of the tag's manifest. Only policies with selectors read them; then
	// MediaType must not be empty.
	MediaType, ArtifactType string
	Size                    int64
	// Matched and Unmatched have the policies whose selectors annotations, labels and platforms
	// select and don't select the tag (see [policy.Policy.MatchAttributes]). A policy with such
	// selectors that is in neither set is in doubt about the tag.
	Matched, Unmatched PolicySet
	// Platforms has the platforms of the tag's images, sorted, with 0 bytes between them. It is empty
	// unless each of its images has a platform that is known. Only policies and keep rules with
	// perPlatform read it.
	Platforms string
	// Held says who holds the tag's manifest, or the image that the tag belongs to; "" if
	// nobody does. Then no policy deletes the tag (see package hold).
	Held string
	// Immutable says that the tag is protected as if a rule matched it.
	Immutable bool
	// Exempt has the policies that must not select the tag, because an undo has restored
	// the tag and they haven't been saved since.
	Exempt PolicySet
	// Names has the policies whose patterns select the name, if NamesKnown is set. A forecast judges a
	// tag for each day, and so matches its name only once.
	Names      PolicySet
	NamesKnown bool
}

// CountUnknown makes a tag whose last use can't be found out count as used at the time `now`, by
// the database's clock, or later.
func (t *Tag) CountUnknown(now time.Time) {
	if t.UseUnknown && t.Pulled.Before(now) {
		t.Pulled = now
	}
}

// Used returns the latest use that is known.
func (t *Tag) Used() time.Time {
	latest := t.Pulled
	for _, other := range []time.Time{t.ManifestPulled, t.Checked} {
		if other.After(latest) {
			latest = other
		}
	}
	return latest
}

// LastUse is when the tag was last used or pushed, as far as is known.
func (t *Tag) LastUse() time.Time {
	if used := t.Used(); used.After(t.Created) {
		return used
	}
	return t.Created
}

// Attached returns whether the tag is Attached to another manifest that is in the
// repository. If Image is 0, the caller may not have looked for the image; then Attached
// returns whether the tag's name refers to an image.
func (t *Tag) Attached() bool {
	if t.Image != 0 {
		return t.Image != t.Manifest && !t.Orphan()
	}
	_, ok := AttachedTo(t.Name)
	return ok
}

// Orphan returns whether the tag belongs to an image that isn't in the repository.
func (t *Tag) Orphan() bool { return t.Image == MissingImage }

// validate returns an error for a tag with missing or contradictory fields, for which
// policies would decide wrongly. Only a mistake of the caller can produce such a tag.
func (t *Tag) validate() error {
	switch {
	case t.Name == "":
		return errors.New("judge: a tag without a name")
	case t.Created.IsZero():
		return fmt.Errorf("judge: tag %q has no creation time", t.Name)
	case t.Manifest <= 0:
		return fmt.Errorf("judge: tag %q has no manifest", t.Name)
	case t.Image < MissingImage:
		return fmt.Errorf("judge: tag %q belongs to image %d, which is no manifest", t.Name, t.Image)
	case t.Image == 0 && t.Attached():
		return fmt.Errorf("judge: tag %q belongs to an image and names none", t.Name)
	}
	return nil
}

// Reference is a link from an image index (Parent) to a manifest that it lists (Child).
type Reference struct{ Parent, Child int64 }

// Content is what a manifest stores.
type Content struct {
	Manifest int64
	Size     int64 // of the manifest itself, in bytes
	// Blobs are the digests of its configuration and its layers, as oci.Digest.Bytes has them.
	Blobs []string
	// Sizes are the sizes of the blobs, -1 for those that aren't known; nil if none is.
	Sizes []int64
}

// Repository gives evaluation a repository's tags.
type Repository struct {
	// Tags yields each tag once, in any order, or an error that ends the evaluation.
	// Evaluate ranges over Tags up to twice. The verdict is exact if Tags yields the same
	// tags both times, as from a snapshot; see Verdict for tags that change in between.
	Tags iter.Seq2[Tag, error]
	// Parents returns the references whose Child is one of the given manifests. Evaluate
	// passes at most 1,000 manifests in one call. Nil: the repository has no indexes.
	Parents func(manifests []int64) ([]Reference, error)
	// Held returns those of the given manifests that are held. Evaluate passes at most 1,000
	// manifests in one call. Nil: nothing is held.
	Held func(manifests []int64) ([]int64, error)
	// The following functions are needed if a policy's method is max_bytes. Evaluate passes at
	// most 1,000 manifests or blobs in one call.
	//
	// Kept returns the references whose Parent is one of the given manifests: from an index to
	// the manifests that it lists, and from a subject to its referrers. Contents returns what
	// these manifests store. BlobSizes returns the sizes of blobs in bytes.
	Kept      func(manifests []int64) ([]Reference, error)
	Contents  func(manifests []int64) ([]Content, error)
	BlobSizes func(blobs []string) (map[string]int64, error)
	// Stock has the answers of these functions to earlier evaluations. Nil: there are none.
	Stock *Stock
}
