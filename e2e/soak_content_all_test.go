//go:build all

package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// blobContent is the bytes of a blob.
type blobContent struct {
	v1.Descriptor
	bytes []byte
}

// image is a manifest or an index, with everything that it refers to.
type image struct {
	v1.Descriptor
	text     []byte
	blobs    []*blobContent
	children []*image
}

// each calls fn with the image and with all its children at any depth.
func (m *image) each(fn func(*image)) {
	fn(m)
	for _, child := range m.children {
		child.each(fn)
	}
}

func (m *image) has(d digest.Digest) (found bool) {
	m.each(func(x *image) { found = found || x.Digest == d })
	return found
}

// universe has all blobs and images that workers may push, apart from referrers. There are so
// few of them that different workers often push the same one.
type universe struct {
	blobs  []*blobContent
	images []*image
	empty  *blobContent
}

// blobSizes says that there are `n` blobs of up to `most` bytes each. Most of the blobs are so
// small that Purser keeps an upload of them in its database row, some are written to the store
// in one piece, and the last two are uploaded to S3 in parts.
var blobSizes = []struct{ n, most int }{{100, 2 << 10}, {36, 60 << 10}, {12, 300 << 10}, {2, 17 << 20}}

func newUniverse(seed uint64) *universe {
	rng := rand.New(rand.NewPCG(seed, 0))
	noise := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16), byte(seed >> 24)})
	u := &universe{empty: newContent(v1.MediaTypeEmptyJSON, []byte("{}"))}
	for _, size := range blobSizes {
		for range size.n {
			b := make([]byte, size.most/2+rng.IntN(size.most/2))
			noise.Read(b) //nolint:errcheck // it never fails
			u.blobs = append(u.blobs, newContent(v1.MediaTypeImageLayer, b))
		}
	}
	for i := range 150 {
		u.images = append(u.images, u.newImage(rng, i))
	}
	for i := range 50 {
		u.images = append(u.images, u.newIndex(rng, i))
	}
	return u
}

func newContent(mediaType string, b []byte) *blobContent {
	return &blobContent{descriptor(mediaType, b), b}
}

func newManifest(mediaType string, manifest any, blobs []*blobContent, children []*image) *image {
	text, err := json.Marshal(manifest)
	if err != nil {
		panic(err)
	}
	return &image{descriptor(mediaType, text), text, blobs, children}
}

// blob returns a random blob. Blobs at the beginning of u.blobs, which are small, are the most
// likely.
func (u *universe) blob(rng *rand.Rand) *blobContent {
	x := rng.Float64()
	return u.blobs[int(x*x*x*float64(len(u.blobs)))]
}

func (u *universe) newImage(rng *rand.Rand, i int) *image {
	config := u.blob(rng)
	m := v1.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageManifest,
		Config: config.Descriptor, Annotations: map[string]string{"number": fmt.Sprint(i)}}
	blobs := []*blobContent{config}
	for j := range 1 + rng.IntN(3) {
		layer := u.blob(rng)
		if i%25 == 0 && j == 0 {
			layer = u.blobs[len(u.blobs)-1-rng.IntN(2)]
		}
		m.Layers, blobs = append(m.Layers, layer.Descriptor), append(blobs, layer)
	}
	return newManifest(v1.MediaTypeImageManifest, m, blobs, nil)
}

// newIndex makes an index of images and indexes.
func (u *universe) newIndex(rng *rand.Rand, i int) *image {
	index := v1.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageIndex,
		Annotations: map[string]string{"number": fmt.Sprint(i)}}
	var children []*image
	for range 1 + rng.IntN(3) {
		child := u.images[rng.IntN(len(u.images))]
		if len(child.children) > 0 && len(child.children[0].children) > 0 {
			child = child.children[0] // two levels are enough
		}
		index.Manifests, children = append(index.Manifests, child.Descriptor), append(children, child)
	}
	return newManifest(v1.MediaTypeImageIndex, index, nil, children)
}

// newReferrer makes a manifest with the given subject and one of 40 layers. So a subject has
// at most 40 different referrers, and workers often push the same one.
func (u *universe) newReferrer(rng *rand.Rand, subject v1.Descriptor) *image {
	layer := u.blobs[rng.IntN(40)]
	subject = v1.Descriptor{MediaType: subject.MediaType, Digest: subject.Digest, Size: subject.Size}
	m := v1.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageManifest,
		ArtifactType: "application/x-soak", Config: u.empty.Descriptor, Layers: []v1.Descriptor{layer.Descriptor},
		Subject: &subject}
	return newManifest(v1.MediaTypeImageManifest, m, []*blobContent{u.empty, layer}, nil)
}
