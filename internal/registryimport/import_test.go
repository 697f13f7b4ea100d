package registryimport_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/blob/blobtest"
	"github.com/purser-registry/purser/internal/blob/s3"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/check"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/registryimport"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

// Manifests and tags keep the times at which the other registry got them. The audit log says who
// made them, and that they weren't pushed.
func TestImportKeepsTimes(t *testing.T) {
	t.Parallel()
	b, o := catalogtest.Setup(t), newOther(t)
	d := o.manifest("acme/app", o.image("one", nil), longAgo, "v1")
	o.put(o.tagLink("acme/app", "latest"), d.String(), later)
	if r, skipped := o.run(b, nil); r.Tags != 2 || r.Manifests != 1 || r.Blobs != 2 || len(skipped) > 0 {
		t.Errorf("%+v, skipped %q", r, skipped)
	}
	for sql, at := range map[string]time.Time{
		"SELECT count(*) FROM manifests WHERE created_at = $1":                                              longAgo,
		"SELECT count(*) FROM tags WHERE name = 'v1' AND created_at = $1 AND updated_at IS NULL":            longAgo,
		"SELECT count(*) FROM tags WHERE name = 'latest' AND created_at = $1 AND updated_at IS NULL":        later,
		"SELECT 1 WHERE NOT EXISTS (SELECT FROM blobs WHERE created_at < $1::timestamptz + interval '1 y')": later,
	} {
		if b.Count(t, sql, at) != 1 {
			t.Errorf("not true at %v: %s", at, sql)
		}
	}
	const entries = "SELECT count(*) FROM auditlog WHERE kind = 'create_tag' AND user_agent = 'purser import' AND tag IN ('v1', 'latest')"
	if n := b.Count(t, entries); n != 2 || b.Count(t, "SELECT count(*) FROM auditlog WHERE kind = 'push_repo'") != 0 {
		t.Errorf("%d entries of new tags, want 2 and no push", n)
	}
	o.clean(b)

	// The tag moved in the other registry. A tag that was pushed to Purser later stays.
	next := o.manifest("acme/app", o.image("two", nil), later.AddDate(1, 0, 0), "v1", "latest")
	b.Put(t, "acme/app", o.imageInPurser(b, "acme/app", "ours"), "latest")
	if r, _ := o.run(b, nil); r.Tags != 1 || r.Newer != 1 || r.Manifests != 1 {
		t.Errorf("after a move: %+v", r)
	}
	if n := b.Count(t, "SELECT count(*) FROM tags WHERE name = 'v1' AND created_at = $1 AND updated_at = $2", longAgo, later.AddDate(1, 0, 0)); n != 1 || tagsOf(t, b, "acme/app")["v1"] != next {
		t.Errorf("the moved tag: %v, %d rows with the times", tagsOf(t, b, "acme/app"), n)
	}
	if r, _ := o.run(b, nil); r.Tags != 0 || r.Manifests != 0 || r.UpToDate != 1 || r.Newer != 1 {
		t.Errorf("once more: %+v", r)
	}
}

// TestImportOfTheFuture: the clock of the other registry was ahead when a tag was pushed there. Such a
// time proves nothing: what was pushed to Purser since stays, at each repetition.
func TestImportOfTheFuture(t *testing.T) {
	t.Parallel()
	b, o := catalogtest.Setup(t), newOther(t)
	old := o.manifest("acme/app", o.image("one", nil), time.Now().AddDate(1, 0, 0), "latest")
	if r, skipped := o.run(b, nil); r.Tags != 1 || len(skipped) > 0 || tagsOf(t, b, "acme/app")["latest"] != old {
		t.Fatalf("%+v, skipped %q", r, skipped)
	}
	ours := b.Put(t, "acme/app", o.imageInPurser(b, "acme/app", "ours"), "latest")
	for range 2 {
		if r, skipped := o.run(b, nil); r.Tags != 0 || r.Newer != 1 || len(skipped) > 0 {
			t.Errorf("once more: %+v, skipped %q", r, skipped)
		}
		if have := tagsOf(t, b, "acme/app")["latest"]; have != ours {
			t.Errorf("the tag points to %s, not to what was pushed last", have)
		}
	}
}

// TestImportOfTheFutureMoved: the other registry's clock is ahead, and somebody moves a tag there after it was
// imported. An import can't tell which push was later, so it names the tag and changes nothing. The look
// before the end of the imports counts it.
func TestImportOfTheFutureMoved(t *testing.T) {
	t.Parallel()
	b, o := catalogtest.Setup(t), newOther(t)
	old := o.manifest("acme/app", o.image("one", nil), time.Now().AddDate(1, 0, 0), "latest", "one")
	o.run(b, nil)
	moved := o.manifest("acme/app", o.image("two", nil), time.Now().AddDate(1, 0, 1), "latest")
	for _, dry := range []bool{false, true, false} {
		var differs []string
		r, skipped := o.run(b, func(o *registryimport.Options) {
			o.DryRun = dry
			o.Differs = func(repository, tag string, _ time.Time) { differs = append(differs, repository+":"+tag) }
		})
		if r.Tags != 0 || r.Newer != 0 || r.UpToDate != 1 || len(skipped) != 1 || !strings.Contains(skipped[0], "acme/app:latest: ") || !strings.Contains(skipped[0], "is in the future") {
			t.Errorf("dry %v: %+v, skipped %q", dry, r, skipped)
		}
		if fmt.Sprint(differs) != "[acme/app:latest]" {
			t.Errorf("dry %v: %q differ", dry, differs)
		}
		if have := tagsOf(t, b, "acme/app")["latest"]; have != old {
			t.Errorf("dry %v: the tag points to %s", dry, have)
		}
	}
	o.put(o.tagLink("acme/app", "latest"), moved.String(), time.Now().Add(-time.Millisecond)) // its clock is right now
	b.Exec(t, "UPDATE tags SET created_at = created_at - interval '1 h', updated_at = updated_at - interval '1 h'")
	if r, skipped := o.run(b, nil); r.Tags != 1 || len(skipped) > 0 || tagsOf(t, b, "acme/app")["latest"] != moved {
		t.Errorf("with a right clock: %+v, skipped %q", r, skipped)
	}
}

// imageInPurser pushes an image's blobs to Purser, and returns its payload.
func (o *other) imageInPurser(b catalogtest.Bundle, repository, name string) []byte {
	return image(o.t, func(content string) oci.Digest { return b.Push(o.t, repository, content) }, name, nil)
}

// An index brings its platforms, and an image what is attached to it, and what is attached to that.
// Other manifests without a tag come when they are asked for.
func TestImportWhatBelongsTogether(t *testing.T) {
	t.Parallel()
	b, o := catalogtest.Setup(t), newOther(t)
	amd, arm := o.manifest("app", o.image("amd", nil), longAgo), o.manifest("app", o.image("arm", nil), longAgo)
	index := o.manifest("app", catalogtest.Index(t, amd, arm), longAgo, "multi")
	subject := func(d oci.Digest) map[string]any {
		return map[string]any{"subject": map[string]any{"mediaType": oci.MediaTypeImageManifest, "digest": d.String(), "size": 1}}
	}
	signature := o.manifest("app", o.image("signature", subject(amd)), longAgo)
	ofSignature := o.manifest("app", o.image("of the signature", subject(signature)), longAgo)
	alone := o.manifest("app", o.image("alone", nil), longAgo)
	ofAlone := o.manifest("app", o.image("of alone", subject(alone)), longAgo)
	r, skipped := o.run(b, func(o *registryimport.Options) { o.To = "from/docker" })
	if r.Manifests != 5 || r.Untagged != 2 || r.Tags != 1 || len(skipped) > 0 {
		t.Errorf("%+v, skipped %q", r, skipped)
	}
	has := func(want ...oci.Digest) {
		t.Helper()
		c, err := b.Content(t.Context(), "from/docker/app")
		if err != nil {
			t.Fatal(err)
		}
		got := slices.Collect(maps.Keys(c.Manifests))
		catalogtest.SortDigests(got)
		catalogtest.SortDigests(want)
		if !slices.Equal(got, want) {
			t.Errorf("manifests %v, want %v", got, want)
		}
	}
	has(amd, arm, index, signature, ofSignature)
	r, _ = o.run(b, func(o *registryimport.Options) { o.To, o.Untagged = "from/docker", true })
	if r.Manifests != 2 || r.Untagged != 0 {
		t.Errorf("with untagged ones: %+v", r)
	}
	has(amd, arm, index, signature, ofSignature, alone, ofAlone)
	b.AtOnce(t)
	b.DueNow(t)
	b.ReviewAll(t)
	has(amd, arm, index, signature, ofSignature)
	o.clean(b)
}

// An import names broken images and skips them.
func TestImportSkipsWhatIsBroken(t *testing.T) {
	t.Parallel()
	b, o := catalogtest.Setup(t), newOther(t)
	good := o.manifest("app", o.image("good", nil), longAgo, "good")
	noLayer := o.image("no layer", nil)
	o.manifest("app", noLayer, longAgo, "no-layer")
	remove := func(key string) {
		if err := o.store.Delete(t.Context(), []string{key}); err != nil {
			t.Fatal(err)
		}
	}
	remove(o.data(oci.Compute(oci.SHA256, []byte("the layer of no layer"))))
	damaged := o.manifest("app", o.image("damaged", nil), longAgo, "damaged")
	o.put(o.data(damaged), "something else", longAgo)
	gone := o.manifest("app", o.image("gone", nil), longAgo, "gone")
	remove(o.data(gone))
	o.put(o.tagLink("app", "empty"), "", longAgo)
	o.put(o.tagLink("app", "rubbish"), "sha256:rubbish", longAgo)
	o.put(o.tagLink("app", "no-revision"), o.blob("{}").String(), longAgo)
	o.manifest("app", []byte(`{"schemaVersion": 1}`), longAgo, "schema1")
	o.manifest("app", o.image("hostile", nil), longAgo, "-no-tag\x1b[31m")
	child := o.manifest("app", o.image("child", nil), longAgo)
	o.manifest("app", catalogtest.Index(t, good, child), longAgo, "index")
	remove(o.revision("app", child))
	o.manifest("Upper/Case", o.image("upper", nil), longAgo, "v1")
	wrongSize := bytes.Replace(o.image("wrong size", nil), []byte(`"size":23`), []byte(`"size":24`), 1)
	wrong := o.manifest("app", wrongSize, longAgo, "wrong-size") // only the manifest is wrong
	if !bytes.Contains(wrongSize, []byte(`"size":24`)) {
		t.Fatalf("the manifest has no wrong size: %s", wrongSize)
	}

	for _, dry := range []bool{true, false} {
		r, skipped := o.run(b, func(o *registryimport.Options) { o.DryRun = dry })
		if r.Tags != 2 || r.Manifests != 2 || r.Skipped != 10 {
			t.Errorf("dry %t: %+v", dry, r)
		}
		for _, want := range []string{
			"Upper/Case:: ", "app:-no-tag\x1b[31m: ", "app:damaged: the file " + o.data(damaged) + " is damaged: its content is sha256:",
			"app:empty: the file " + o.tagLink("app", "empty"), "app:gone: the file " + o.data(gone) + " is missing",
			"app:index: its manifest " + child.String() + " can't be imported: manifest " + child.String() + " was deleted",
			"app:no-layer: blob sha256:", "app:no-revision: manifest sha256:", "app:rubbish: the file ", "app:schema1: schemaVersion: Docker schema 1",
		} {
			if !slices.ContainsFunc(skipped, func(s string) bool { return strings.HasPrefix(s, want) }) {
				t.Errorf("dry %t: skipped %q, want %q", dry, skipped, want)
			}
		}
		if dry && b.Rows(t, "repositories")+b.Rows(t, "blobs")+b.Rows(t, "imports")+b.Rows(t, "auditlog") != 0 {
			t.Error("a dry run has written rows")
		}
	}
	if got := tagsOf(t, b, "app"); len(got) != 2 || got["good"] != good || got["wrong-size"] != wrong {
		t.Errorf("tags %v", got)
	}
	// A registry that accepts sparse indexes takes the index without the missing manifest.
	b.Catalog = catalog.New(catalog.Options{DB: b.DB, SparseIndexes: true})
	if r, _ := o.run(b, func(o *registryimport.Options) { o.Sparse = true }); r.Tags != 1 || r.Skipped != 9 {
		t.Errorf("with sparse indexes: %+v", r)
	}
	if got := tagsOf(t, b, "app"); len(got) != 3 {
		t.Errorf("tags %v", got)
	}
}

// A tag's directory without current/link, with the tag's history or empty, is named: distribution lists
// it as a tag too.
func TestImportNamesTagsWithoutLink(t *testing.T) {
	t.Parallel()
	b, o := catalogtest.Setup(t), newOther(t)
	d := o.manifest("acme/app", o.image("one", nil), longAgo, "v1")
	tags := path.Dir(path.Dir(path.Dir(o.tagLink("acme/app", "v1"))))
	o.put(path.Join(tags, "history/index/sha256", d.Hex(), "link"), d.String(), longAgo)
	o.put(path.Join(tags, "v1/index/sha256", d.Hex(), "link"), d.String(), longAgo) // v1 has both
	if err := os.MkdirAll(filepath.Join(o.dir, tags, "empty/current"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, dry := range []bool{true, false} {
		r, skipped := o.run(b, func(o *registryimport.Options) { o.DryRun = dry })
		if r.Tags != 1 || r.Skipped != 2 || len(skipped) != 2 {
			t.Fatalf("dry %t: %+v, skipped %q", dry, r, skipped)
		}
		for i, tag := range []string{"empty", "history"} {
			if want := "acme/app:" + tag + ": the file " + o.tagLink("acme/app", tag) + " is missing"; skipped[i] != want {
				t.Errorf("dry %t: skipped %q, want %q", dry, skipped[i], want)
			}
		}
	}
}

// A second import counts only blobs that the first one didn't bring: not those of a tag that it leaves
// alone or can't import, and not those that new images share with old ones.
func TestImportCountsBlobsOnce(t *testing.T) {
	t.Parallel()
	b, o := catalogtest.Setup(t), newOther(t)
	o.manifest("app", o.image("one", nil), longAgo, "v1")
	o.manifest("app", o.image("moved here", nil), longAgo, "ours")
	b.Put(t, "app", o.imageInPurser(b, "app", "ours"), "ours") // pushed later
	o.manifest("app", o.image("hostile", nil), longAgo, "-no-tag")
	lacking := o.manifest("app", o.image("lacking", nil), longAgo)
	o.manifest("app", catalogtest.Index(t, lacking, oci.Compute(oci.SHA256, []byte("nothing"))), longAgo, "index")
	for _, dry := range []bool{true, false} {
		r, _ := o.run(b, func(o *registryimport.Options) { o.DryRun = dry })
		if r.Tags != 1 || r.Newer != 1 || r.Blobs != 4 || r.Bytes == 0 { // of v1, and of the index's image
			t.Errorf("first, dry %t: %+v", dry, r)
		}
	}
	if n := b.Rows(t, "repository_blobs"); n != 6 {
		t.Errorf("the repository has %d blobs, want the 4 and its own 2", n)
	}
	for _, dry := range []bool{true, false} {
		if r, _ := o.run(b, func(o *registryimport.Options) { o.DryRun = dry }); r.Tags != 0 || r.Blobs != 0 || r.Bytes != 0 {
			t.Errorf("second, dry %t: %+v", dry, r)
		}
	}
	shared := o.image("one", map[string]any{"annotations": map[string]string{"build": "2"}})
	o.manifest("app", shared, later, "v2")
	o.manifest("other", shared, later, "v2")
	for _, dry := range []bool{true, false} {
		if r, _ := o.run(b, func(o *registryimport.Options) { o.DryRun = dry }); r.Tags != 2 || r.Blobs != 2 { // of "other" alone
			t.Errorf("third, dry %t: %+v", dry, r)
		}
	}
}

// zot's OCI layouts, with a blob that two repositories have and whose content zot keeps once.
func TestImportLayouts(t *testing.T) {
	t.Parallel()
	b, o := catalogtest.Setup(t), newOther(t)
	layout := func(repository string, empty bool, tags map[string][]byte) {
		o.put(path.Join("zot", repository, "oci-layout"), `{"imageLayoutVersion":"1.0.0"}`, longAgo)
		list := []any{}
		for tag, payload := range tags {
			d := oci.Compute(oci.SHA256, payload)
			o.put(path.Join("zot", repository, "blobs/sha256", d.Hex()), string(payload), longAgo)
			entry := map[string]any{"mediaType": oci.MediaTypeImageManifest, "digest": d.String(), "size": len(payload)}
			if tag != "" {
				entry["annotations"] = map[string]string{"org.opencontainers.image.ref.name": tag}
			}
			list = append(list, entry)
		}
		index, err := json.Marshal(map[string]any{"schemaVersion": 2, "manifests": list})
		if err != nil {
			t.Fatal(err)
		}
		o.put(path.Join("zot", repository, "index.json"), string(index), longAgo)
	}
	in := func(repository string, empty bool) func(string) oci.Digest {
		return func(content string) oci.Digest {
			d := oci.Compute(oci.SHA256, []byte(content))
			if empty {
				content = ""
			}
			o.put(path.Join("zot", repository, "blobs/sha256", d.Hex()), content, longAgo)
			return d
		}
	}
	shared := image(t, in("_blobstore", false), "shared", nil)
	image(t, in("app", true), "shared", nil)
	image(t, in("deep/app", true), "shared", nil)
	layout("app", false, map[string][]byte{"v1": shared, "": image(t, in("app", false), "untagged", nil)})
	layout("deep/app", false, map[string][]byte{"v1": shared, "v2": image(t, in("deep/app", false), "other", nil)})
	o.put("zot/_trivy/db/file", "x", longAgo)

	if _, err := registryimport.Run(t.Context(), registryimport.Options{Catalog: b.Catalog, Store: o.store, Dir: "nothing"}); err == nil || !strings.Contains(err.Error(), `"nothing"`) {
		t.Errorf("a directory without storage: %v", err)
	}
	r, skipped := o.run(b, func(o *registryimport.Options) { o.Dir = "zot" })
	if r.Format != "layout" || r.Repositories != 2 || r.Tags != 3 || r.Manifests != 3 || r.Untagged != 1 || len(skipped) > 0 {
		t.Errorf("%+v, skipped %q", r, skipped)
	}
	if n := b.Count(t, "SELECT count(*) FROM manifests WHERE created_at = $1", longAgo); n != 3 {
		t.Errorf("%d manifests have the time of their file, want 3", n)
	}
	o.clean(b)
}

// The same in S3, below the store's prefix.
func TestImportFromS3(t *testing.T) {
	t.Parallel()
	options := blobtest.S3Server(t)
	store, err := s3.New(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() }) //nolint:errcheck // it only has idle connections
	b, o := catalogtest.Setup(t), &other{t: t, store: store, root: "old/docker/registry/v2"}
	d := o.manifest("acme/app", o.image("one", nil), time.Time{}, "v1")
	o.manifest("acme/app/nested", o.image("two", nil), time.Time{}, "v1")
	r, skipped := o.run(b, func(o *registryimport.Options) { o.Dir = "/old/" })
	if r.Tags != 2 || r.Repositories != 2 || len(skipped) > 0 || tagsOf(t, b, "acme/app")["v1"] != d {
		t.Errorf("%+v, skipped %q", r, skipped)
	}
	o.clean(b)
}

// Objects that garbage collection gave up stay until the end, come back with the next import, and go
// after the end. What belongs to the registry isn't imported again.
func TestImportFinishes(t *testing.T) {
	t.Parallel()
	b, o := catalogtest.Setup(t), newOther(t)
	b.AtOnce(t)
	d := o.manifest("acme/app", o.image("one", nil), longAgo, "v1")
	forget := func() {
		t.Helper()
		if err := b.DeleteManifest(t.Context(), "acme/app", d); err != nil {
			t.Fatal(err)
		}
		b.ReviewAll(t)
	}
	o.run(b, nil)
	forget()
	if n := b.Rows(t, "gc_foreign_objects"); n != 2 || b.Rows(t, "gc_doomed_objects") != 0 || b.Rows(t, "blobs") != 0 {
		t.Fatalf("%d foreign objects, want 2, and nothing doomed", n)
	}
	o.run(b, nil)
	if n := b.Rows(t, "gc_foreign_objects"); n != 0 || b.Rows(t, "blobs") != 2 {
		t.Fatalf("%d foreign objects after the second import, want none", n)
	}
	o.clean(b)
	forget()
	objects, bytes, err := b.FinishImports(t.Context())
	if err != nil || objects != 2 || bytes == 0 || b.Rows(t, "gc_doomed_objects") != 2 || b.Rows(t, "gc_foreign_objects") != 0 {
		t.Errorf("finishing: %d objects, %d bytes, %v", objects, bytes, err)
	}
	for _, dir := range []string{"", "docker"} {
		for _, dry := range []bool{true, false} {
			_, err = registryimport.Run(t.Context(), registryimport.Options{Catalog: b.Catalog, Store: o.store, Dir: dir, DryRun: dry})
			if dir == "" && !errors.Is(err, catalog.ErrImportFinished) || err == nil {
				t.Errorf("an import of %q after the end (dry run: %t): %v", dir, dry, err)
			}
		}
	}
	// A check finds the files that no row owns now, and not before: the manifest, its links, and a
	// blob that no manifest needs.
	unused := o.blob("never imported")
	o.put("lost/found", "", longAgo)
	o.put("backups/blobs/sha256/x", "", longAgo)
	var found []string
	old := longAgo.AddDate(0, 0, 1)
	for _, d := range []oci.Digest{d, unused} {
		if err := os.Chtimes(filepath.Join(o.dir, o.data(d)), old, old); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		report, err := check.Run(t.Context(), check.Options{Catalog: b.Catalog, Store: o.store, Tree: o.store, Repair: true, Found: func(f check.Finding) {
			if f.Problem != check.Unowned || !f.Repaired {
				t.Errorf("found %+v", f)
			}
			found = append(found, f.Key)
		}})
		if err != nil {
			t.Fatal(err)
		}
		if report.Young != 0 {
			t.Errorf("%d young files have no owner, want none: the blobs of the image are doomed", report.Young)
		}
	}
	want := []string{o.data(d), o.data(unused), o.revision("acme/app", d), o.tagLink("acme/app", "v1")}
	slices.Sort(found)
	slices.Sort(want)
	if !slices.Equal(found, want) || b.Rows(t, "gc_doomed_objects") != 6 {
		t.Errorf("without an owner: %q, want %q; %d objects are doomed, want 6", found, want, b.Rows(t, "gc_doomed_objects"))
	}
	list, waiting, _, err := b.Imports(t.Context())
	if err != nil || len(list) != 1 || list[0].Finished.IsZero() || list[0].Source != "docker/registry/v2/" || waiting != 0 {
		t.Errorf("the imports: %+v, %d objects wait, %v", list, waiting, err)
	}
}

// A blob that Purser has already keeps its object, and a lost one gets the foreign object.
func TestImportOfKnownBlobs(t *testing.T) {
	t.Parallel()
	b, o := catalogtest.Setup(t), newOther(t)
	o.manifest("acme/app", o.image("one", nil), longAgo, "v1")
	known, lost := b.Push(t, "other", `{"name":"one"}`), b.Push(t, "other", "the layer of one")
	b.Exec(t, "UPDATE blobs SET lost_at = now() WHERE digest = $1", lost.Bytes())
	if r, skipped := o.run(b, nil); r.Tags != 1 || len(skipped) > 0 {
		t.Errorf("%+v, skipped %q", r, skipped)
	}
	key := func(d oci.Digest) string {
		s, there, err := b.StoredBlob(t.Context(), d)
		if err != nil || !there || s.Lost {
			t.Fatalf("%+v, %t, %v", s, there, err)
		}
		return s.Key
	}
	if key(lost) != o.data(lost) || strings.Contains(key(known), "/") || b.Rows(t, "gc_doomed_objects") != 1 {
		t.Errorf("keys %s and %s, %d objects doomed", key(known), key(lost), b.Rows(t, "gc_doomed_objects"))
	}
	if !b.Linked(t, "acme/app", known) || !b.Linked(t, "acme/app", lost) {
		t.Error("a blob isn't linked")
	}
}

// A context that ends stops the import, and the next one goes on.
func TestImportGoesOn(t *testing.T) {
	t.Parallel()
	b, o := catalogtest.Setup(t), newOther(t)
	for i := range 30 {
		o.manifest(fmt.Sprintf("acme/app%d", i%3), o.image(fmt.Sprint(i), nil), longAgo, fmt.Sprint(i))
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err := registryimport.Run(ctx, registryimport.Options{Catalog: b.Catalog, Store: o.store, Parallel: 1,
		Progress: func(r registryimport.Report) {
			if r.Tags == 7 {
				cancel()
			}
		}})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("cancelled: %v", err)
	}
	before := b.Rows(t, "tags")
	r, skipped := o.run(b, nil)
	if before == 0 || before == 30 || r.Tags != int64(30-before) || r.UpToDate != int64(before) || len(skipped) > 0 {
		t.Errorf("%d tags before, then %+v, skipped %q", before, r, skipped)
	}
	o.clean(b)
}
