package operate

import (
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/registryimport"
)

func TestDirectoryInStore(t *testing.T) {
	t.Parallel()
	var disk, bucket config.Storage
	disk.Filesystem.Path = "/var/lib/registry"
	bucket.S3.Bucket = "registry"
	for _, c := range []struct {
		in   string
		cfg  config.Storage
		want string // "!": an error
	}{
		{"/var/lib/registry", disk, ""}, {"/var/lib/registry/old/", disk, "old"}, {".", disk, ""}, {"old/./deep", disk, "old/deep"},
		{"/var/lib/registry-two", disk, "!"}, {"/", disk, "!"}, {"..", disk, "!"}, {"old/../..", disk, "!"},
		{"old", bucket, "old"}, {"/old", bucket, "!"}, {"../old", bucket, "!"},
	} {
		got, err := directoryInStore(c.in, c.cfg)
		if (err != nil) != (c.want == "!") || err == nil && got != c.want {
			t.Errorf("%q: %q, %v; want %q", c.in, got, err, c.want)
		}
	}
}

// TestTagsThatMayBeLater: a storage whose clock is behind shows tags of after an import as older ones.
func TestTagsThatMayBeLater(t *testing.T) {
	t.Parallel()
	began := time.Now()
	for pushed, want := range map[time.Duration]bool{
		time.Hour: true, time.Second: true, 0: true, -time.Second: true, -4 * time.Minute: true, -6 * time.Minute: false, -time.Hour: false,
	} {
		if got := mayBeLater(began.Add(pushed), began, 5*time.Minute); got != want {
			t.Errorf("%v after the import began: %v, want %v", pushed, got, want)
		}
	}
}

// TestImportMeasured: an import tells the share that is done as soon as the repositories are counted, and before that
// what it has done.
func TestImportMeasured(t *testing.T) {
	t.Parallel()
	r := registryimport.Report{Repositories: 1, Tags: 2, Manifests: 3, Parts: 1.5}
	if m := importMeasured("importing", r); m.Share != 0 || m.Text != "1 repository, 2 tags, 3 manifests, 0 skipped" || m.Count != 3 {
		t.Errorf("before: %+v", m)
	}
	r.Whole = 6
	if m := importMeasured("importing", r); m.Share != 0.25 || m.Text != "1 of 6 repositories, 2 tags, 3 manifests, 0 skipped" {
		t.Errorf("after: %+v", m)
	}
	if r.Whole = 1; importMeasured("importing", r).Share != 1 {
		t.Error("more is done than there is")
	}
}
