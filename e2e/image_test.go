package e2e

import (
	"archive/tar"
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"path/filepath"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// tagAnnotation is the annotation under which the index.json of an OCI layout has the tag of
// each manifest.
const tagAnnotation = "org.opencontainers.image.ref.name"

// newImage returns a new image with OCI media types. Each of its layers has one file with
// `size` random bytes.
func newImage(t testing.TB, layers, size int) v1.Image {
	t.Helper()
	return newPlatformImage(t, layers, size, "amd64")
}

func newPlatformImage(t testing.TB, layers, size int, architecture string) v1.Image {
	t.Helper()
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for i := range layers {
		layer, err := tarball.LayerFromOpener(layerOpener(fmt.Sprintf("file%d", i), randomBytes(size)),
			tarball.WithMediaType(types.OCILayer))
		if err != nil {
			t.Fatalf("making a layer: %v", err)
		}
		if img, err = mutate.AppendLayers(img, layer); err != nil {
			t.Fatalf("appending a layer: %v", err)
		}
	}
	file, err := img.ConfigFile()
	if err != nil {
		t.Fatalf("making a configuration: %v", err)
	}
	file = file.DeepCopy()
	file.OS, file.Architecture = "linux", architecture
	file.Config.Cmd = []string{"/file0"}
	if img, err = mutate.ConfigFile(img, file); err != nil {
		t.Fatalf("making a configuration: %v", err)
	}
	return img
}

// newIndex returns an index with one image for each architecture.
func newIndex(t testing.TB, architectures ...string) v1.ImageIndex {
	t.Helper()
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, architecture := range architectures {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add:        newPlatformImage(t, 1, 4<<10, architecture),
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: architecture}},
		})
	}
	return index
}

// writeImage writes an OCI layout that has the image under a tag, and returns its directory.
func writeImage(t testing.TB, img v1.Image, tag string) string {
	t.Helper()
	dir, path := newLayout(t)
	if err := path.AppendImage(img, layout.WithAnnotations(map[string]string{tagAnnotation: tag})); err != nil {
		t.Fatalf("writing an image: %v", err)
	}
	return dir
}

// writeIndex writes an OCI layout that has the index under a tag, and returns its directory.
func writeIndex(t testing.TB, index v1.ImageIndex, tag string) string {
	t.Helper()
	dir, path := newLayout(t)
	if err := path.AppendIndex(index, layout.WithAnnotations(map[string]string{tagAnnotation: tag})); err != nil {
		t.Fatalf("writing an index: %v", err)
	}
	return dir
}

func newLayout(t testing.TB) (string, layout.Path) {
	t.Helper()
	dir := filepath.Join(newDir(t), "layout")
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatalf("writing a layout: %v", err)
	}
	return dir, path
}

// layoutDigests returns the digests of the manifests that a layout's index.json lists.
func layoutDigests(t testing.TB, dir string) []string {
	t.Helper()
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatalf("reading the layout that a client wrote: %v", err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatalf("reading the layout that a client wrote: %v", err)
	}
	var digests []string
	for _, d := range manifest.Manifests {
		digests = append(digests, d.Digest.String())
	}
	return digests
}

// digester is an image or an index.
type digester interface{ Digest() (v1.Hash, error) }

func digestOf(t testing.TB, d digester) string {
	t.Helper()
	digest, err := d.Digest()
	if err != nil {
		t.Fatalf("computing a digest: %v", err)
	}
	return digest.String()
}

// layerOpener returns a function that opens a layer, a tar archive with one file.
func layerOpener(name string, content []byte) tarball.Opener {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(content))})
	if err == nil {
		_, err = w.Write(content)
	}
	if err == nil {
		err = w.Close()
	}
	return func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), err }
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	rand.Read(b) //nolint:errcheck // it never fails
	return b
}
