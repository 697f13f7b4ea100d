package registryimport_test

import (
	"context"
	"errors"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/registryimport"
)

// dotted is a bucket in which keys below repositories have the elements "." and "..", as an S3
// service allows.
type dotted struct {
	registryimport.Store
	calls int
}

func (d *dotted) Directories(ctx context.Context, dir string) ([]string, error) {
	if d.calls++; d.calls > 1000 {
		return nil, errors.New("the same directories are listed again and again")
	}
	names, err := d.Store.Directories(ctx, dir)
	if path.Base(dir) == "repositories" {
		names = append([]string{".", ".."}, names...)
	}
	return names, err
}

// TestImportIgnoresDots expects that an import ends although the names "." and ".." lead it to
// directories where it has been.
func TestImportIgnoresDots(t *testing.T) {
	t.Parallel()
	b, o := catalogtest.Setup(t), newOther(t)
	d := o.manifest("acme/app", o.image("app", nil), longAgo, "1")
	o.store = &dotted{Store: o.store}
	report, skipped := o.run(b, nil)
	if report.Repositories != 1 || report.Tags != 1 || len(skipped) > 0 || tagsOf(t, b, "acme/app")["1"] != d {
		t.Fatalf("imported %+v, skipped %q", report, skipped)
	}
}

// TestDeleteKeepsLinkedDirectory deletes one of two objects in a directory that is a symbolic link, as
// the blobs of a layout may be on another volume. The link stays, and with it the other object.
func TestDeleteKeepsLinkedDirectory(t *testing.T) {
	t.Parallel()
	o := newOther(t)
	elsewhere := filepath.Join(o.dir, "volume")
	blobs := filepath.Join(o.dir, "app/blobs")
	for _, dir := range []string{elsewhere, blobs} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../../volume", filepath.Join(blobs, "sha256")); err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, content := range []string{"one", "two"} {
		hex := oci.Compute(oci.SHA256, []byte(content)).Hex()
		if err := os.WriteFile(filepath.Join(elsewhere, hex), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		keys = append(keys, "app/blobs/sha256/"+hex)
	}
	if err := o.store.Delete(t.Context(), keys[:1]); err != nil {
		t.Fatal(err)
	}
	if _, err := o.store.Stat(t.Context(), keys[0]); err == nil {
		t.Error("the deleted object is still there")
	}
	if _, err := o.store.Stat(t.Context(), keys[1]); err != nil {
		t.Errorf("the other object: %v", err)
	}
}

// replace puts something else in the place of a file.
func (o *other) replace(key string, with func(path string) error) {
	o.t.Helper()
	file := filepath.Join(o.dir, key)
	if err := errors.Join(os.Remove(file), with(file)); err != nil {
		o.t.Fatal(err)
	}
}

func fifo(path string) error { return syscall.Mkfifo(path, 0o600) }

// TestImportTakesRegularFiles expects that an import skips, and names, what isn't a regular file of
// the store: a FIFO, which would make it wait, and a symbolic link to a file elsewhere, whose content
// can change at any time.
func TestImportTakesRegularFiles(t *testing.T) {
	t.Parallel()
	b, o := catalogtest.Setup(t), newOther(t)
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, []byte("the layer of linked layer"), 0o600); err != nil {
		t.Fatal(err)
	}
	link := func(path string) error { return os.Symlink(outside, path) }
	layer := func(name string) string { return o.data(oci.Compute(oci.SHA256, []byte("the layer of "+name))) }
	for name, with := range map[string]func(string) error{"fifo layer": fifo, "linked layer": link} {
		o.manifest("app", o.image(name, nil), longAgo, name[:4]+"-layer")
		o.replace(layer(name), with)
	}
	o.replace(o.data(o.manifest("app", o.image("fifo", nil), longAgo, "manifest-fifo")), fifo)
	o.replace(o.data(o.manifest("app", o.image("link", nil), longAgo, "manifest-link")), link)
	o.manifest("app", o.image("tag", nil), longAgo, "tag-fifo")
	o.replace(o.tagLink("app", "tag-fifo"), fifo) // the listing of files leaves it out
	d := o.manifest("app", o.image("good", nil), longAgo, "good")
	report, skipped := o.run(b, nil)
	if report.Tags != 1 || tagsOf(t, b, "app")["good"] != d {
		t.Errorf("imported %+v", report)
	}
	if len(skipped) != 5 {
		t.Errorf("skipped %q, want 5", skipped)
	}
	for _, s := range skipped {
		if !strings.Contains(s, "isn't a regular file") {
			t.Error(s)
		}
	}
}

// TestImportedFileBecomesLink expects that a blob that was imported isn't served any more if its file
// becomes a symbolic link out of the store.
func TestImportedFileBecomesLink(t *testing.T) {
	t.Parallel()
	b, o := catalogtest.Setup(t), newOther(t)
	o.manifest("app", o.image("app", nil), longAgo, "1")
	if report, skipped := o.run(b, nil); report.Tags != 1 {
		t.Fatalf("imported %+v, skipped %q", report, skipped)
	}
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, []byte("the layer of app"), 0o600); err != nil {
		t.Fatal(err)
	}
	key := o.data(oci.Compute(oci.SHA256, []byte("the layer of app")))
	o.replace(key, func(path string) error { return os.Symlink(outside, path) })
	if r, err := o.store.Open(t.Context(), key, 0, -1); !errors.Is(err, blob.ErrNotFound) {
		t.Errorf("it is served: %v %v", r, err)
	}
}

// TestLayoutTakesRegularFiles expects the same of OCI layouts.
func TestLayoutTakesRegularFiles(t *testing.T) {
	t.Parallel()
	b, o := catalogtest.Setup(t), newOther(t)
	for _, name := range []string{"fifo", "link"} {
		if err := os.MkdirAll(filepath.Join(o.dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(o.dir, name, "oci-layout"), []byte(`{"imageLayoutVersion":"1.0.0"}`), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(fifo(filepath.Join(o.dir, "fifo/index.json")), os.Symlink("/dev/zero", filepath.Join(o.dir, "link/index.json"))); err != nil {
		t.Fatal(err)
	}
	if report, skipped := o.run(b, nil); report.Repositories != 2 || len(skipped) != 2 {
		t.Errorf("imported %+v, skipped %q", report, skipped)
	}
}

// TestLayoutNamesWhatItLeavesOut expects that an import names a layout without oci-layout, one without
// index.json, and a tag that an index gives to two manifests. A directory that has nothing but an
// index.json is no storage of another registry.
func TestLayoutNamesWhatItLeavesOut(t *testing.T) {
	t.Parallel()
	b, o := catalogtest.Setup(t), newOther(t)
	o.put("site/index.json", "{}", longAgo)
	if _, err := registryimport.Run(t.Context(), registryimport.Options{Catalog: b.Catalog, Store: o.store}); err == nil || b.Rows(t, "imports") != 0 {
		t.Errorf("a directory with an index.json alone: %v, %d imports", err, b.Rows(t, "imports"))
	}
	var entries []string
	for _, name := range []string{"one", "two"} {
		payload := image(t, func(content string) oci.Digest {
			d := oci.Compute(oci.SHA256, []byte(content))
			o.put("app/blobs/sha256/"+d.Hex(), content, longAgo)
			return d
		}, name, nil)
		d := oci.Compute(oci.SHA256, payload)
		o.put("app/blobs/sha256/"+d.Hex(), string(payload), longAgo)
		entries = append(entries, `{"mediaType":"`+oci.MediaTypeImageManifest+`","digest":"`+d.String()+`","size":1,
			"annotations":{"org.opencontainers.image.ref.name":"v1"}}`)
	}
	o.put("app/oci-layout", `{"imageLayoutVersion":"1.0.0"}`, longAgo)
	o.put("app/index.json", `{"schemaVersion":2,"manifests":[`+strings.Join(entries, ",")+`]}`, longAgo)
	o.put("no-index/oci-layout", `{"imageLayoutVersion":"1.0.0"}`, longAgo)
	report, skipped := o.run(b, nil)
	if report.Tags != 1 || len(skipped) != 3 {
		t.Fatalf("imported %+v, skipped %q", report, skipped)
	}
	for i, want := range []string{"app:v1: the file app/index.json gives the tag to a later manifest", "no-index:: the file no-index/index.json is missing",
		"site:: the file site/oci-layout is missing"} {
		if !strings.HasPrefix(skipped[i], want) {
			t.Errorf("skipped %q, want %q", skipped[i], want)
		}
	}
}
