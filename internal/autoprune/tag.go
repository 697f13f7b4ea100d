package autoprune

import (
	"errors"
	"fmt"
	"iter"
	"time"
)

// MissingImage is the [Tag.Image] of a tag whose image isn't in the repository.
const MissingImage = -1

// Tag has the properties of a tag that evaluation needs. Manifests are identified by
// numbers above 0 that are unique within the repository, such as their ids.
type Tag struct {
	Name string
	// Created is when the tag was last pushed: created, or moved to another manifest.
	Created  time.Time
	Manifest int64
	// Image is the manifest that the tag belongs to: the one that AttachedTo finds in its
	// name, or else the subject of its manifest. It is MissingImage if that isn't in the
	// repository, and 0 if the tag belongs to none. A tag with an image in the repository
	// is attached and deleted with the image. A tag whose image is missing is an orphan,
	// and judged like any other tag, unless a policy asks for the removal of orphans. A tag
	// that names the manifest it points to is also judged like any other: some tools tag
	// images by their digest.
	Image int64
	// Pulled, ManifestPulled and Checked are the times of the latest known uses: a pull by
	// this tag, a pull of its manifest or of a manifest below that, a HEAD of the tag.
	// Zero: none is known. Only last_pulled policies read them.
	Pulled, ManifestPulled, Checked time.Time
	// Exempt are the policies that must not take the tag, because an undo restored it and
	// they haven't been saved since.
	Exempt PolicySet
}

// used returns the latest use that is known.
func (t *Tag) used() time.Time {
	latest := t.Pulled
	for _, other := range []time.Time{t.ManifestPulled, t.Checked} {
		if other.After(latest) {
			latest = other
		}
	}
	return latest
}

// attached returns whether the tag belongs to an image of the repository.
func (t *Tag) attached() bool {
	if t.Image != 0 {
		return t.Image != t.Manifest && !t.orphan()
	}
	_, ok := AttachedTo(t.Name)
	return ok
}

// orphan returns whether the tag belongs to an image that isn't in the repository.
func (t *Tag) orphan() bool { return t.Image == MissingImage }

// validate refuses tags that only a mistake of the caller can produce, and that would be
// deleted wrongly.
func (t *Tag) validate() error {
	switch {
	case t.Name == "":
		return errors.New("autoprune: a tag without a name")
	case t.Created.IsZero():
		return fmt.Errorf("autoprune: tag %q has no creation time", t.Name)
	case t.Manifest <= 0:
		return fmt.Errorf("autoprune: tag %q has no manifest", t.Name)
	case t.Image < MissingImage:
		return fmt.Errorf("autoprune: tag %q belongs to image %d, which is no manifest", t.Name, t.Image)
	case t.Image == 0 && t.attached():
		return fmt.Errorf("autoprune: tag %q belongs to an image and names none", t.Name)
	}
	return nil
}

// Reference is a link from an index to one of its manifests.
type Reference struct{ Parent, Child int64 }

// Repository gives evaluation a repository's tags.
type Repository struct {
	// Tags yields each tag once, in any order, or an error that ends the evaluation. It is
	// run up to twice. The verdict is exact if both runs yield the same, as from a
	// snapshot; see Verdict for tags that change in between.
	Tags iter.Seq2[Tag, error]
	// Parents returns the references whose child is one of the manifests given,
	// at most 1,000 at a time. Nil stands for a repository without indexes.
	Parents func(manifests []int64) ([]Reference, error)
}

// Tags yields the elements of a slice.
func Tags(tags []Tag) iter.Seq2[Tag, error] {
	return func(yield func(Tag, error) bool) {
		for i := range tags {
			if !yield(tags[i], nil) {
				return
			}
		}
	}
}
