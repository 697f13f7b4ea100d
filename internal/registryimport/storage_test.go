package registryimport_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/builtinpg/pgtest"
	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/check"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/registryimport"
)

// other is the storage of another registry in Purser's blob store.
type other struct {
	t     *testing.T
	store registryimport.Store
	dir   string // of the store, if it is a directory
	root  string // in the store
}

func newOther(t *testing.T) *other {
	t.Helper()
	dir := pgtest.TempDir(t)
	store, err := blob.OpenDir(blob.DirOptions{Path: dir})
	if err != nil {
		t.Fatal(err)
	}
	return &other{t, store, dir, "docker/registry/v2"}
}

// put writes a file and, if the store is a directory, sets its time.
func (o *other) put(key, content string, at time.Time) {
	o.t.Helper()
	err := o.store.(blob.Putter).Put(o.t.Context(), key, int64(len(content)), strings.NewReader(content))
	if err == nil && o.dir != "" && !at.IsZero() {
		err = os.Chtimes(filepath.Join(o.dir, key), at, at)
	}
	if err != nil {
		o.t.Fatal(err)
	}
}

func (o *other) data(d oci.Digest) string {
	return path.Join(o.root, "blobs/sha256", d.Hex()[:2], d.Hex(), "data")
}

// blob stores content as distribution does.
func (o *other) blob(content string) oci.Digest {
	o.t.Helper()
	d := oci.Compute(oci.SHA256, []byte(content))
	o.put(o.data(d), content, time.Time{})
	return d
}

func (o *other) revision(repository string, d oci.Digest) string {
	return path.Join(o.root, "repositories", repository, "_manifests/revisions/sha256", d.Hex(), "link")
}

func (o *other) tagLink(repository, tag string) string {
	return path.Join(o.root, "repositories", repository, "_manifests/tags", tag, "current/link")
}

// manifest stores a manifest with tags, pushed at the time `at`.
func (o *other) manifest(repository string, payload []byte, at time.Time, tags ...string) oci.Digest {
	o.t.Helper()
	d := o.blob(string(payload))
	o.put(o.revision(repository, d), d.String(), at)
	for _, tag := range tags {
		o.put(o.tagLink(repository, tag), d.String(), at)
	}
	return d
}

// image returns the payload of an image whose blobs are stored.
func (o *other) image(name string, more map[string]any) []byte {
	o.t.Helper()
	return image(o.t, o.blob, name, more)
}

// image returns the payload of an image, and stores its configuration and layer.
func image(t *testing.T, store func(content string) oci.Digest, name string, more map[string]any) []byte {
	t.Helper()
	descriptor := func(mediaType, content string) map[string]any {
		return map[string]any{"mediaType": mediaType, "digest": store(content).String(), "size": len(content)}
	}
	m := map[string]any{
		"schemaVersion": 2, "mediaType": oci.MediaTypeImageManifest,
		"config": descriptor("application/vnd.oci.image.config.v1+json", `{"name":"`+name+`"}`),
		"layers": []any{descriptor("application/vnd.oci.image.layer.v1.tar", "the layer of "+name)},
	}
	maps.Copy(m, more)
	payload, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return payload
}

// run imports, and returns the report and the reasons why things were skipped.
func (o *other) run(b catalogtest.Bundle, change func(*registryimport.Options)) (registryimport.Report, []string) {
	o.t.Helper()
	options := registryimport.Options{Catalog: b.Catalog, Store: o.store}
	var skipped []string
	options.Skipped = func(s registryimport.Skip) {
		skipped = append(skipped, fmt.Sprintf("%s:%s: %s", s.Repository, s.Tag, s.Reason))
	}
	if change != nil {
		change(&options)
	}
	ctx := audit.WithSource(o.t.Context(), audit.Source{UserAgent: "purser import"})
	report, err := registryimport.Run(ctx, options)
	if err != nil {
		o.t.Fatalf("importing: %v (skipped %q)", err, skipped)
	}
	slices.Sort(skipped)
	return report, skipped
}

// clean expects that a check of database and store finds nothing.
func (o *other) clean(b catalogtest.Bundle) {
	o.t.Helper()
	_, err := check.Run(o.t.Context(), check.Options{Catalog: b.Catalog, Store: o.store, Deep: true,
		Found: func(f check.Finding) {
			if !f.Problem.Note() {
				o.t.Errorf("found %+v", f)
			}
		}})
	if err != nil {
		o.t.Error(err)
	}
}

// tagsOf returns a repository's tags with their manifests.
func tagsOf(t *testing.T, b catalogtest.Bundle, repository string) map[string]oci.Digest {
	t.Helper()
	c, err := b.Content(t.Context(), repository)
	if err != nil {
		t.Fatal(err)
	}
	tags := make(map[string]oci.Digest)
	for tag, m := range c.Tags {
		tags[tag] = m.Digest
	}
	return tags
}

var (
	longAgo = time.Date(2021, 3, 4, 5, 6, 7, 0, time.UTC)
	later   = longAgo.AddDate(1, 0, 0)
)
