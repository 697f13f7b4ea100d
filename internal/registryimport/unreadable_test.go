package registryimport_test

import (
	"context"
	"io"
	"io/fs"
	"iter"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/registryimport"
)

// locked is a directory of which this process may not read some files, and directories, whose names end
// with "/". It does what blob.Dir does then; root may read everything.
type locked struct {
	registryimport.Store
	paths []string
}

func (l *locked) add(path string) { l.paths = append(l.paths, path) }

// at returns what is locked of what leads to the key, itself included, and the error for it.
func (l *locked) at(key string) (string, error) {
	for _, p := range l.paths {
		if dir := strings.TrimSuffix(p, "/"); key == dir || strings.HasPrefix(key, dir+"/") {
			return p, &fs.PathError{Op: "openat", Path: key, Err: syscall.EACCES}
		}
	}
	return "", nil
}

func (l *locked) Open(ctx context.Context, key string, off, length int64) (io.ReadCloser, error) {
	if _, err := l.at(key); err != nil {
		return nil, err
	}
	return l.Store.Open(ctx, key, off, length)
}

func (l *locked) Readable(_ context.Context, key string) error {
	_, err := l.at(key)
	return err
}

func (l *locked) Stat(ctx context.Context, key string) (blob.Object, error) {
	if p, err := l.at(key); err != nil && p != key {
		return blob.Object{}, err
	}
	return l.Store.Stat(ctx, key)
}

func (l *locked) Directories(ctx context.Context, dir string) ([]string, error) {
	if _, err := l.at(dir); err != nil {
		return nil, err
	}
	return l.Store.Directories(ctx, dir)
}

func (l *locked) Files(ctx context.Context, dir string) iter.Seq2[blob.Object, error] {
	return func(yield func(blob.Object, error) bool) {
		said := map[string]bool{}
		for o, err := range l.Store.Files(ctx, dir) {
			p, denied := l.at(o.Key)
			if denied != nil && p != o.Key {
				if said[p] {
					continue
				}
				said[p] = true
				o, err = blob.Object{Key: strings.TrimSuffix(p, "/")}, denied
			}
			if !yield(o, err) {
				return
			}
		}
	}
}

func (l *locked) Others(ctx context.Context, dir string, deep bool) ([]string, error) {
	if _, err := l.at(dir); err != nil {
		return nil, err
	}
	keys, err := l.Store.Others(ctx, dir, deep)
	return slices.DeleteFunc(keys, func(key string) bool {
		_, err := l.at(key)
		return err != nil
	}), err
}

// names expects that an import skips these things, by the beginnings of what it says, and nothing else.
func names(t *testing.T, skipped []string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !slices.ContainsFunc(skipped, func(s string) bool { return strings.HasPrefix(s, w) }) {
			t.Errorf("not named: %s", w)
		}
	}
	if len(skipped) != len(want) {
		t.Errorf("named are %d, want %d:\n%s", len(skipped), len(want), strings.Join(skipped, "\n"))
	}
}

// TestImportGoesOnBehindBrokenDirectories: a repository in which something else has the name of a
// directory is named, and so is a name that isn't UTF-8; the other repositories are imported.
func TestImportGoesOnBehindBrokenDirectories(t *testing.T) {
	t.Parallel()
	b, o := catalogtest.Setup(t), newOther(t)
	d := o.manifest("good", o.image("good", nil), longAgo, "v1")
	manifests := func(repository string) string { return o.root + "/repositories/" + repository + "/_manifests/" }
	file := func(path string) error { return os.WriteFile(path, nil, 0o600) }
	for repository, with := range map[string]func(string) error{"file": file, "linked": symlink(t.TempDir())} {
		o.put(manifests(repository)+"revisions/sha256/"+d.Hex()+"/link", d.String(), longAgo)
		o.odd(manifests(repository)+"tags", with)
	}
	o.put(o.tagLink("revisions", "v1"), d.String(), longAgo)
	o.odd(manifests("revisions")+"revisions", file)
	o.put(o.tagLink("good", "caf\xe9"), d.String(), longAgo)
	o.put(manifests("good")+"revisions/sha256/\xff", "", longAgo)
	o.put(manifests("good\xff")+"tags/v1/current/link", d.String(), longAgo)
	for _, dry := range []bool{true, false} {
		report, skipped := o.run(b, func(o *registryimport.Options) { o.DryRun = dry })
		if report.Tags != 1 {
			t.Errorf("imported %+v", report)
		}
		names(t, skipped,
			"file:: "+manifests("file")+"tags can't be read", "linked:: "+manifests("linked")+"tags can't be read",
			"revisions:: "+manifests("revisions")+"revisions can't be read",
			`good:: the name of "`+manifests("good")+`tags/caf\xe9" isn't UTF-8`, `good:: the name of "`+manifests("good")+`revisions/sha256/\xff" isn't UTF-8`,
			"good\xff:: the name of \""+o.root+`/repositories/good\xff" isn't UTF-8`)
	}
	if tagsOf(t, b, "good")["v1"] != d {
		t.Error("the good image isn't imported")
	}
}

// TestImportGoesOnBehindWhatItMayNotRead expects that files and directories that this process may not
// read are named, and that the rest is imported. That includes a layer: an image whose layer
// can't be read can't be pulled.
func TestImportGoesOnBehindWhatItMayNotRead(t *testing.T) {
	t.Parallel()
	b, o := catalogtest.Setup(t), newOther(t)
	l := &locked{Store: o.store}
	image := func(repository, tag string) oci.Digest {
		return o.manifest(repository, o.image(tag, nil), longAgo, tag)
	}
	layer := func(tag string) string { return o.data(oci.Compute(oci.SHA256, []byte("the layer of "+tag))) }
	good := image("app", "good")
	for _, tag := range []string{"link", "tag", "current", "history", "layer", "layer-dir", "manifest", "revision"} {
		d := image("app", tag)
		switch tag {
		case "link":
			l.add(o.tagLink("app", tag))
		case "tag":
			l.add(path.Dir(path.Dir(o.tagLink("app", tag))) + "/")
		case "current":
			l.add(path.Dir(o.tagLink("app", tag)) + "/")
		case "history": // of no interest
			index := path.Join(path.Dir(path.Dir(o.tagLink("app", tag))), "index")
			o.put(path.Join(index, "sha256", d.Hex(), "link"), d.String(), longAgo)
			l.add(index + "/")
		case "layer":
			l.add(layer(tag))
		case "layer-dir":
			l.add(path.Dir(layer(tag)) + "/")
		case "manifest":
			l.add(o.data(d))
		case "revision":
			l.add(path.Dir(o.revision("app", d)) + "/")
		}
	}
	repositories := o.root + "/repositories/"
	for _, dir := range []string{"whole/", "manifests/_manifests/", "tags/_manifests/tags/", "revisions/_manifests/revisions/"} {
		image(path.Dir(strings.Split(dir, "/")[0]+"/x"), "v1")
		l.add(repositories + dir)
	}
	o.store = l
	for _, dry := range []bool{true, false} {
		report, skipped := o.run(b, func(o *registryimport.Options) { o.DryRun = dry })
		if report.Tags != 2 {
			t.Errorf("dry %t: imported %+v", dry, report)
		}
		names(t, skipped,
			"app:link: ", "app:tag: ", "app:current: ", "app:layer: "+layer("layer")+" can't be read: permission denied", "app:layer-dir: ", "app:manifest: ",
			"app:revision: manifest sha256:", "app:: "+repositories+"app/_manifests/revisions/sha256/",
			"whole:: "+repositories+"whole can't be read: permission denied", "manifests:: "+repositories+"manifests/_manifests can't be read",
			"tags:: "+repositories+"tags/_manifests/tags can't be read", "revisions:: "+repositories+"revisions/_manifests/revisions can't be read")
	}
	if tags := tagsOf(t, b, "app"); tags["good"] != good || len(tags) != 2 {
		t.Errorf("tags %v", tags)
	}
	o.clean(b)

	// The root of all is no broken repository.
	l.add(repositories)
	if _, err := registryimport.Run(t.Context(), registryimport.Options{Catalog: b.Catalog, Store: l}); err == nil || !strings.Contains(err.Error(), "permission denied") {
		t.Errorf("repositories can't be read: %v", err)
	}
}

// TestLayoutsGoOnBehindWhatIsBroken expects the same of OCI layouts.
func TestLayoutsGoOnBehindWhatIsBroken(t *testing.T) {
	t.Parallel()
	b, o := catalogtest.Setup(t), newOther(t)
	payload := image(t, func(content string) oci.Digest {
		d := oci.Compute(oci.SHA256, []byte(content))
		o.put("app/blobs/sha256/"+d.Hex(), content, longAgo)
		return d
	}, "app", nil)
	d := oci.Compute(oci.SHA256, payload)
	o.put("app/blobs/sha256/"+d.Hex(), string(payload), longAgo)
	index := `{"schemaVersion":2,"manifests":[{"mediaType":"` + oci.MediaTypeImageManifest + `","digest":"` + d.String() + `","size":1,
		"annotations":{"org.opencontainers.image.ref.name":"v1"}}]}`
	for name, text := range map[string]string{
		"app": index, "locked-index": index, "locked-blobs": index,
		"object": "{}", "null": "null", "other": `{"errors":[]}`, "array": "[]", "emptied": `{"manifests":[]}`, "emptied-null": `{"schemaVersion":2,"manifests":null}`,
	} {
		o.put(name+"/oci-layout", `{"imageLayoutVersion":"1.0.0"}`, longAgo)
		o.put(name+"/index.json", text, longAgo)
	}
	o.put("app\xff/index.json", index, longAgo)
	o.put("app/blobs/sha256/\xff/x", "", longAgo)
	o.put("lost+found/x", "", longAgo)
	o.odd("docker", func(path string) error { return os.WriteFile(path, nil, 0o600) })
	o.store = &locked{o.store, []string{"lost+found/", "locked-index/index.json", "locked-blobs/blobs/"}}
	report, skipped := o.run(b, nil)
	if report.Tags != 1 || tagsOf(t, b, "app")["v1"] != d {
		t.Errorf("imported %+v", report)
	}
	names(t, skipped, "app\xff:: the name of ", "array:: the file array/index.json: ", "null:: the file null/index.json: it has no manifests",
		"object:: the file object/index.json: it has no manifests", "other:: the file other/index.json: it has no manifests",
		"locked-index:: locked-index/index.json can't be read", "locked-blobs:v1: locked-blobs/blobs/sha256/", "lost+found:: lost+found/oci-layout can't be read")
}
