package servertest

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/purser-registry/purser/internal/oci"
)

// StartUpload begins an upload and returns its location.
func (r *Registry) StartUpload(t testing.TB, repository, query string) string {
	t.Helper()
	a := r.Do(t, "POST", "/v2/"+repository+"/blobs/uploads/"+query, "").Want(t, 202, "", "Location", "*")
	return a.Header.Get("Location")
}

// Push stores content as a blob of the repository.
func (r *Registry) Push(t testing.TB, repository, content string) oci.Digest {
	t.Helper()
	d := Digest(content)
	r.Do(t, "PUT", r.StartUpload(t, repository, "")+"?digest="+d.String(), content).Want(t, 201, "")
	return d
}

// Put stores a manifest under a tag.
func (r *Registry) Put(t testing.TB, repository, tag, payload string) oci.Digest {
	t.Helper()
	d := Digest(payload)
	r.Do(t, "PUT", "/v2/"+repository+"/manifests/"+tag, payload).Want(t, 201, "", "Docker-Content-Digest", d.String())
	return d
}

// WantBlob checks that the repository has the blob, byte for byte.
func (r *Registry) WantBlob(t testing.TB, repository string, d oci.Digest, content string) {
	t.Helper()
	r.Do(t, "GET", "/v2/"+repository+"/blobs/"+d.String(), "").
		Want(t, 200, "", "Docker-Content-Digest", d.String(), "Content-Length", fmt.Sprint(len(content))).Text(t, content)
}

func Digest(content string) oci.Digest    { return oci.Compute(oci.SHA256, []byte(content)) }
func Digest512(content string) oci.Digest { return oci.Compute(oci.SHA512, []byte(content)) }

type Object = map[string]any

func Descriptor(mediaType string, d oci.Digest, size int) Object {
	return Object{"mediaType": mediaType, "digest": d.String(), "size": size}
}

const (
	ConfigType = "application/vnd.oci.image.config.v1+json"
	LayerType  = "application/vnd.oci.image.layer.v1.tar+gzip"
)

// Image returns an image manifest; more adds or replaces members.
func Image(t testing.TB, config oci.Digest, layers []oci.Digest, more Object) string {
	t.Helper()
	list := []any{}
	for _, l := range layers {
		list = append(list, Descriptor(LayerType, l, 1))
	}
	m := Object{
		"schemaVersion": 2, "mediaType": oci.MediaTypeImageManifest,
		"config": Descriptor(ConfigType, config, 1), "layers": list,
	}
	for k, v := range more {
		m[k] = v
	}
	return Encode(t, m)
}

// Simple pushes a small configuration and returns an image manifest that refers to it, without
// pushing the manifest. Simple puts `n` into an annotation, so that manifests with different `n`
// differ. The members in `more` are added to the manifest, or replace members of the same name,
// such as annotations.
func (r *Registry) Simple(t testing.TB, repository string, n any, more Object) string {
	t.Helper()
	config := r.Push(t, repository, "{}")
	m := Object{"annotations": map[string]string{"n": fmt.Sprint(n)}}
	for k, v := range more {
		m[k] = v
	}
	return Image(t, config, nil, m)
}

func Index(t testing.TB, children ...oci.Digest) string {
	t.Helper()
	list := []any{}
	for _, d := range children {
		list = append(list, Descriptor(oci.MediaTypeImageManifest, d, 1))
	}
	return Encode(t, Object{"schemaVersion": 2, "mediaType": oci.MediaTypeImageIndex, "manifests": list})
}

func Encode(t testing.TB, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Pattern returns `n` bytes without short periods, so that a test that gets bytes from a wrong
// offset notices. `seed` selects the pattern.
func Pattern(seed byte, n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i) ^ byte(i>>8)*31 ^ byte(i>>16)*17 ^ seed
	}
	return string(b)
}

// Alike returns two of the contents that `content` makes whose digests begin with the same 6 digits.
func Alike(t testing.TB, content func(i int) string) (one, two string) {
	t.Helper()
	seen := make(map[string]string)
	for i := range 1_000_000 { // 50 % find two after 4,800
		text := content(i)
		begin := Digest(text).Hex()[:6]
		if other, ok := seen[begin]; ok {
			return other, text
		}
		seen[begin] = text
	}
	t.Fatal("no two contents have digests that are alike")
	return "", ""
}
