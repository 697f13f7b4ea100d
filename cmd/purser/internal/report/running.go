package report

import (
	"slices"
	"time"
)

// Running says which image a container runs, as far as its source knows.
type Running struct {
	// Name is the image's name in the container's specification. Its author knows the registry, so
	// its host counts, however the engine calls the image.
	Name string
	// Known are the images that the engine says it runs: names with digests, which may be any of
	// the names that the image has there, or ids.
	Known []Image
	// At is when the container was made. The engine had the image then.
	At time.Time
	// Again says that the engine may have resolved the name again since then.
	Again  bool
	UsedBy string // such as container web
}

// Images returns the images by which registries may know what the container runs. The engine knows
// the digest. But the host and the repository there may be those of a mirror or of another tag of the
// same image, or there are none. The digest may be another's too, if two images have one
// configuration. Therefore all count: the digests of the engine under the name of the specification
// and under their own, and the name of the specification itself. An id counts unless the engine knows
// a digest in the repository that the specification names.
func (r Running) Images() (images []Image) {
	add := func(i Image) {
		i.UsedBy = r.UsedBy
		if !slices.ContainsFunc(images, func(known Image) bool { return known.String() == i.String() }) {
			images = append(images, i)
		}
	}
	named, err := Parse(r.Name)
	same := func(i Image) bool { return err == nil && i.Host == named.Host && i.Repository == named.Repository }
	var digests, exact bool
	for _, k := range r.Known {
		digests = digests || !k.Digest.IsZero()
		exact = exact || !k.Digest.IsZero() && same(k)
	}
	if err == nil {
		named.At, named.Since, named.Doubt = r.At, r.Again, digests
		add(named)
	}
	for _, k := range r.Known {
		if k.Host != "" {
			add(k)
		}
		if err == nil && !same(k) && !(exact && k.Digest.IsZero()) {
			add(Image{Host: named.Host, Repository: named.Repository, Digest: k.Digest, ID: k.ID, Doubt: true})
		}
	}
	return images
}
