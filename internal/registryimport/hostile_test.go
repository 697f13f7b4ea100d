package registryimport_test

import (
	"context"
	"errors"
	"os"
	"path"
	"path/filepath"
	"testing"

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
	elsewhere := t.TempDir()
	blobs := filepath.Join(o.dir, "app/blobs")
	if err := os.MkdirAll(blobs, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(elsewhere, filepath.Join(blobs, "sha256")); err != nil {
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
