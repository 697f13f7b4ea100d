package demo

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// Media types and artifact types of what is attached to images.
const (
	typeSignature = "application/vnd.dev.cosign.artifact.sig.v1+json"
	typePayload   = "application/vnd.dev.cosign.simplesigning.v1+json"
	typeSBOM      = "application/spdx+json"
)

// content is a blob or a manifest with its descriptor.
type content struct {
	v1.Descriptor
	data   []byte
	diffID digest.Digest // of a layer's archive without gzip
}

func newContent(mediaType string, data []byte) content {
	return content{v1.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}, data, ""}
}

// must panics if there is an error. It is for functions that can't fail: they write to memory,
// or encode types of this package as JSON.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// jsonContent returns v as JSON.
func jsonContent(mediaType string, v any) content {
	data, err := json.Marshal(v)
	must(err)
	return newContent(mediaType, data)
}

// newLayer makes a layer: a tar archive with one file of `size` random bytes. It is in gzip's
// format, but not compressed, since random bytes can't be.
func newLayer(name string, size int) content {
	file := make([]byte, size)
	rand.Read(file) //nolint:errcheck // it never fails
	var archive, zipped bytes.Buffer
	tarred := tar.NewWriter(&archive)
	must(tarred.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(size)}))
	_, err := tarred.Write(file)
	must(errors.Join(err, tarred.Close()))
	z, err := gzip.NewWriterLevel(&zipped, gzip.NoCompression)
	must(err)
	_, err = z.Write(archive.Bytes())
	must(errors.Join(err, z.Close()))
	layer := newContent(v1.MediaTypeImageLayerGzip, zipped.Bytes())
	layer.diffID = digest.FromBytes(archive.Bytes())
	return layer
}

// image is an image manifest with its blobs: the configuration and the layers.
type image struct {
	manifest content
	blobs    []content
}

// newImage makes an image with these layers.
func newImage(p v1.Platform, layers ...content) image {
	now := time.Now().UTC()
	config := v1.Image{Created: &now, Platform: p, RootFS: v1.RootFS{Type: "layers"}}
	manifest := v1.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageManifest}
	for _, layer := range layers {
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, cmp.Or(layer.diffID, layer.Digest))
		manifest.Layers = append(manifest.Layers, layer.Descriptor)
	}
	c := jsonContent(v1.MediaTypeImageConfig, config)
	manifest.Config = c.Descriptor
	m := jsonContent(v1.MediaTypeImageManifest, manifest)
	m.Platform = &p
	return image{m, append([]content{c}, layers...)}
}

// newIndex makes an index that lists images.
func newIndex(images []image) content {
	index := v1.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageIndex}
	for _, i := range images {
		index.Manifests = append(index.Manifests, i.manifest.Descriptor)
	}
	return jsonContent(v1.MediaTypeImageIndex, index)
}

// newArtifact makes a manifest that is attached to `subject`.
func newArtifact(subject content, artifactType string, layer content) image {
	config := newContent(v1.MediaTypeEmptyJSON, []byte("{}"))
	s := v1.Descriptor{MediaType: subject.MediaType, Digest: subject.Digest, Size: subject.Size}
	return image{jsonContent(v1.MediaTypeImageManifest, v1.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageManifest, ArtifactType: artifactType,
		Config: config.Descriptor, Layers: []v1.Descriptor{layer.Descriptor}, Subject: &s,
	}), []content{config, layer}}
}

// payload returns what a signature of `subject` signs, in cosign's format.
func payload(repository string, subject content) content {
	return jsonContent(typePayload, map[string]any{"critical": map[string]any{
		"identity": map[string]string{"docker-reference": repository},
		"image":    map[string]string{"docker-manifest-digest": subject.Digest.String()},
		"type":     "cosign container image signature",
	}, "optional": nil})
}

// newSignature makes a signature that is attached to `subject`. Nobody has signed it, since
// the registry doesn't look at signatures.
func newSignature(repository string, subject content) image {
	return newArtifact(subject, typeSignature, payload(repository, subject))
}

// newOldSignature makes a signature as older versions of cosign push it: an image that is
// attached by its tag (signatureTag).
func newOldSignature(repository string, subject content) image {
	return newImage(v1.Platform{}, payload(repository, subject))
}

// signatureTag returns the tag of an old signature of `subject`.
func signatureTag(subject content) string {
	return fmt.Sprintf("%s-%s.sig", subject.Digest.Algorithm(), subject.Digest.Encoded())
}

// newSBOM makes a software bill of materials that is attached to `subject`.
func newSBOM(name string, subject content) image {
	return newArtifact(subject, typeSBOM, jsonContent(typeSBOM, map[string]any{
		"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": name,
		"documentNamespace": "https://purser.invalid/" + subject.Digest.String(),
		"packages":          []map[string]string{{"SPDXID": "SPDXRef-Package", "name": name, "downloadLocation": "NOASSERTION"}},
	}))
}
