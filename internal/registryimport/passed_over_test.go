package registryimport_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/registryimport"
)

// odd makes something that is neither a directory nor a regular file.
func (o *other) odd(key string, with func(path string) error) {
	o.t.Helper()
	file := filepath.Join(o.dir, key)
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), with(file)); err != nil {
		o.t.Fatal(err)
	}
}

func symlink(target string) func(string) error {
	return func(path string) error { return os.Symlink(target, path) }
}

func socket(path string) error { return syscall.Mknod(path, syscall.S_IFSOCK|0o600, 0) }

// TestImportNamesWhatItPassesOver: an import follows no symbolic links to directories and waits for no
// FIFO; it names each of them, also where a link or a directory should be, and imports the rest.
func TestImportNamesWhatItPassesOver(t *testing.T) {
	t.Parallel()
	b, o := catalogtest.Setup(t), newOther(t)
	d := o.manifest("team/app", o.image("good", nil), longAgo, "v1")
	repositories, manifests := o.root+"/repositories/", o.root+"/repositories/team/app/_manifests/"
	want := map[string]func(string) error{
		repositories + "linked":           symlink("team"),
		repositories + "out":              symlink(t.TempDir()),
		repositories + "nowhere":          symlink("none"),
		repositories + "pipe":             fifo,
		repositories + "team/socket":      socket,
		repositories + "bare/_manifests":  symlink("../team/app/_manifests"),
		manifests + "tags/moved":          symlink("v1"),
		manifests + "tags/pipe":           fifo,
		manifests + "revisions/sha512":    symlink("sha256"),
		manifests + "revisions/sha256/aa": socket,
	}
	for key, with := range want {
		o.odd(key, with)
	}
	revision := func(name string) string {
		return manifests + "revisions/sha256/" + oci.Compute(oci.SHA256, []byte(name)).Hex()
	}
	for name, with := range map[string]func(string) error{"fifo": fifo, "directory": func(path string) error { return os.Mkdir(path, 0o755) }, "dangling": symlink("none")} {
		o.odd(revision(name)+"/link", with)
		want[revision(name)+"/link"] = with
	}
	o.odd(revision("deleted"), func(path string) error { return os.Mkdir(path, 0o755) }) // as a deletion leaves it
	o.odd(o.tagLink("team/app", "directory"), func(path string) error { return os.Mkdir(path, 0o755) })
	o.put(o.tagLink("team/app", "empty"), "", longAgo)
	o.put(o.tagLink("team/app", "huge"), strings.Repeat(d.String(), 1000), longAgo)
	for _, tag := range []string{"directory", "empty", "huge"} {
		want[o.tagLink("team/app", tag)] = nil
	}
	report, skipped := o.run(b, nil)
	if report.Tags != 1 || tagsOf(t, b, "team/app")["v1"] != d {
		t.Errorf("imported %+v", report)
	}
	for key := range want {
		if !slices.ContainsFunc(skipped, func(s string) bool { return strings.Contains(s, key) }) {
			t.Errorf("%s isn't named", key)
		}
	}
	if len(skipped) != len(want) || report.Skipped != int64(len(want)) {
		t.Errorf("%d of %d are named:\n%s", len(skipped), len(want), strings.Join(skipped, "\n"))
	}
}

// TestLayoutNamesWhatItPassesOver expects the same of OCI layouts.
func TestLayoutNamesWhatItPassesOver(t *testing.T) {
	t.Parallel()
	b, o := catalogtest.Setup(t), newOther(t)
	o.put("zot/team/app/oci-layout", `{"imageLayoutVersion":"1.0.0"}`, longAgo)
	o.put("zot/team/app/index.json", `{"schemaVersion":2,"manifests":[]}`, longAgo)
	want := map[string]func(string) error{"zot/linked": symlink("team"), "zot/team/pipe": fifo, "zot/team/out": symlink(t.TempDir())}
	for key, with := range want {
		o.odd(key, with)
	}
	o.odd("zot/.cache", fifo) // zot's own
	report, skipped := o.run(b, func(options *registryimport.Options) { options.Dir = "zot" })
	if report.Repositories != 1 || len(skipped) != len(want) {
		t.Errorf("%+v, skipped %q", report, skipped)
	}
	for key := range want {
		if !slices.ContainsFunc(skipped, func(s string) bool { return strings.Contains(s, key) }) {
			t.Errorf("%s isn't named", key)
		}
	}
}
