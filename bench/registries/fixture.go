package registries

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
)

const (
	mediaManifest = "application/vnd.oci.image.manifest.v1+json"
	mediaConfig   = "application/vnd.oci.image.config.v1+json"
	mediaLayer    = "application/vnd.oci.image.layer.v1.tar"

	smallSize    = 10 << 10 // bytes of a small layer
	bigSize      = 1 << 20  // bytes of the blob of get-1MiB
	manifestSize = 1 << 10  // bytes of the manifests that are read
	tagCount     = 1000     // tags of the repository that tags-1000 lists
	padKey       = "bench.pad"
)

// blob is content with its digest.
type blob struct {
	data   []byte
	digest string
}

func newBlob(data []byte) blob { return blob{data: data, digest: digestOf(data)} }

func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

type descriptor struct {
	MediaType string `json:"mediaType"`
	Digest    string `json:"digest"`
	Size      int    `json:"size"`
}

// imageManifest has those members of an OCI image manifest that the pushed images use
// (image-spec, manifest.md).
type imageManifest struct {
	SchemaVersion int               `json:"schemaVersion"`
	MediaType     string            `json:"mediaType"`
	Config        descriptor        `json:"config"`
	Layers        []descriptor      `json:"layers"`
	Annotations   map[string]string `json:"annotations,omitempty"`
}

// image is a manifest with the blobs that it names; the first blob is its configuration.
type image struct {
	blobs    []blob
	manifest blob
}

// newImage makes an image with the given configuration, layers and annotations. If its
// manifest would be shorter than `pad` bytes, newImage lengthens it to `pad` bytes by one more
// annotation. Images with the same configuration and layers get different manifests by
// different annotations.
func newImage(config blob, layers []blob, annotations map[string]string, pad int) image {
	m := imageManifest{
		SchemaVersion: 2,
		MediaType:     mediaManifest,
		Config:        descriptor{mediaConfig, config.digest, len(config.data)},
		Annotations:   annotations,
	}
	for _, l := range layers {
		m.Layers = append(m.Layers, descriptor{mediaLayer, l.digest, len(l.data)})
	}
	data := marshal(m)
	if pad > 0 {
		m.Annotations = map[string]string{padKey: ""}
		for k, v := range annotations {
			m.Annotations[k] = v
		}
		m.Annotations[padKey] = strings.Repeat("x", max(0, pad-len(marshal(m))))
		data = marshal(m)
	}
	return image{blobs: append([]blob{config}, layers...), manifest: newBlob(data)}
}

func marshal(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // plain structs of strings and numbers: can't fail
	}
	return b
}

// config makes a small image configuration that contains `id`, so that each id gives another
// digest.
func config(id string) blob {
	return newBlob(fmt.Appendf(nil,
		`{"architecture":"amd64","os":"linux","config":{"Labels":{"bench":%q}},"rootfs":{"type":"layers","diff_ids":[]}}`, id))
}

func randomBytes(r *rand.ChaCha8, n int) []byte {
	b := make([]byte, n)
	r.Read(b) //nolint:errcheck // never fails (math/rand/v2)
	return b
}

// fixture is the content that most read workloads read. It is the same in every run, so a
// second run doesn't need to push it to the same registry again.
type fixture struct {
	hot []image // read in turn; manifests of manifestSize bytes
	big blob    // a layer of the first image: bigSize bytes
}

// fixtureTag returns the tag of the fixture's image number i.
func fixtureTag(i int) string { return fmt.Sprintf("v%d", i) }

// newFixture makes n images. Each has a configuration and a small layer of its own; all share
// the big layer.
func newFixture(n int) fixture {
	r := rand.NewChaCha8([32]byte([]byte("bench: the content that is read.")))
	f := fixture{big: newBlob(randomBytes(r, bigSize))}
	for i := range n {
		id := fixtureTag(i)
		layers := []blob{f.big, newBlob(randomBytes(r, smallSize))}
		f.hot = append(f.hot, newImage(config(id), layers, nil, manifestSize))
	}
	return f
}

// small returns the small layer of image number i, which no other image of the fixture has.
func (f fixture) small(i int) blob { return f.hot[i].blobs[2] }

// checkTags returns an error unless body is a tag list with tagCount different tags.
func checkTags(body []byte) error {
	var list struct {
		Tags []string `json:"tags"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return fmt.Errorf("tag list %.100q: %w", bytes.TrimSpace(body), err)
	}
	distinct := map[string]bool{}
	for _, t := range list.Tags {
		distinct[t] = true
	}
	if len(distinct) != tagCount {
		return fmt.Errorf("tag list names %d tags, want %d in one answer", len(distinct), tagCount)
	}
	return nil
}
