package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// startDistribution starts Debian's docker-registry on a storage, and returns its address.
func startDistribution(t *testing.T, storage string) string {
	t.Helper()
	program, err := exec.LookPath("docker-registry")
	if err != nil {
		lacking(t, "docker-registry isn't installed")
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	host := free.Addr().String()
	free.Close() //nolint:errcheck // only its port is needed
	config := filepath.Join(t.TempDir(), "config.yml")
	text := fmt.Sprintf("version: 0.1\nstorage:\n  filesystem: {rootdirectory: %q}\n  delete: {enabled: true}\nhttp: {addr: %q}\nlog: {level: error}\n", storage, host)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := startProcess("docker-registry", exec.Command(program, "serve", config))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	err = p.waitFor(t.Context(), readyWithin, func(ctx context.Context) error {
		if status := getStatus(ctx, "http://"+host+"/v2/"); status != http.StatusOK {
			return fmt.Errorf("status %d", status)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return host
}

// importSummary is what "purser import -o json" prints.
type importSummary struct {
	Summary struct {
		Complete                                                                   bool
		Repositories, Tags, Up_to_date, Newer, Manifests, Blobs, Untagged, Skipped int64
	}
	Skipped struct{ Repository, Tag, Reason string }
}

// runImport runs "purser import", and returns its exit code, its summary, and why tags were skipped.
func runImport(t *testing.T, r *registry, args ...string) (code int, sum importSummary, skipped map[string]string) {
	t.Helper()
	code, out := purser(t, append(r.opt.env, "PURSER_DATA_DIR="+r.opt.dataDir), append([]string{"import", "-o", "json"}, args...)...)
	skipped = make(map[string]string)
	for line := range strings.Lines(out) {
		var s importSummary
		if json.Unmarshal([]byte(line), &s) != nil {
			continue
		}
		if s.Skipped.Repository != "" {
			skipped[s.Skipped.Repository+":"+s.Skipped.Tag] = s.Skipped.Reason
		}
		sum.Summary = s.Summary
	}
	if !sum.Summary.Complete {
		t.Fatalf("purser import %v: exit code %d: %s", args, code, out)
	}
	return code, sum, skipped
}

// TestImport: the storage that Debian's docker-registry has written is imported in place, while both
// registries serve it. Broken images are skipped. A repeated import brings new images. Files that no
// image in Purser uses stay in the storage until the import is finished, and are deleted then.
func TestImport(t *testing.T) {
	beginOwn(t)
	storage := filepath.Join(t.TempDir(), "storage")
	host := startDistribution(t, storage)
	crane := toolClient(t, "crane")
	there := func(repo, tag string) string { return host + "/" + repo + ":" + tag }
	img, index := newImage(t, 2, 10<<10), newIndex(t, "amd64", "arm64")
	crane.Run("push", writeImage(t, newImage(t, 1, 1<<10), "v1"), there("team/app", "v1"))
	crane.Run("push", writeImage(t, img, "v1"), there("team/app", "v1")) // the first one has no tag now
	crane.Run("push", "--index", writeIndex(t, index, "v2"), there("team/app", "v2"))
	crane.Run("copy", there("team/app", "v1"), there("team/deep/tool", "latest"))
	crane.Run("push", writeImage(t, newImage(t, 1, 1<<10), "1"), there("single", "1"))
	unused := newImage(t, 1, 20<<10)
	crane.Run("push", writeImage(t, unused, "unused"), there("team/app", "unused"))
	subject, err := partial.Descriptor(img)
	if err != nil {
		t.Fatal(err)
	}
	signature := mutate.Subject(newImage(t, 1, 100), *subject).(v1.Image)
	ref, err := name.NewDigest(host + "/team/app@" + digestOf(t, signature))
	if err == nil {
		err = remote.Write(ref, signature)
	}
	if err != nil {
		t.Fatal(err)
	}
	file := func(digest string) string {
		hex := strings.TrimPrefix(digest, "sha256:")
		return filepath.Join(storage, "docker/registry/v2/blobs/sha256", hex[:2], hex, "data")
	}
	layerOf := func(img v1.Image) string {
		layers, err := img.Layers()
		if err != nil {
			t.Fatal(err)
		}
		return digestOf(t, layers[0])
	}
	missing, short, deleted := newImage(t, 1, 1<<10), newImage(t, 1, 1<<10), newImage(t, 1, 1<<10)
	for tag, img := range map[string]v1.Image{"missing": missing, "short": short, "deleted": deleted} {
		crane.Run("push", writeImage(t, img, tag), there("team/broken", tag))
	}
	link := filepath.Join(storage, "docker/registry/v2/repositories/team/broken/_manifests/revisions/sha256", strings.TrimPrefix(digestOf(t, deleted), "sha256:"))
	if err := errors.Join(os.Remove(file(layerOf(missing))), os.Truncate(file(layerOf(short)), 100), os.RemoveAll(link)); err != nil {
		t.Fatal(err)
	}

	// Reviews are due at once. So garbage is only collected when the test asks for it: otherwise the
	// blobs of an image could be gone before its manifest is imported.
	r := startRegistry(t, options{env: []string{"PURSER_STORAGE_FILESYSTEM_PATH=" + storage, "PURSER_GC_REVIEW_AFTER=0s",
		"PURSER_GC_REVIEW_BLOBS=false", "PURSER_GC_REVIEW_MANIFESTS=false"}})
	if code, sum, skipped := runImport(t, r, "--dry-run"); code != 4 || sum.Summary.Tags != 6 || len(skipped) != 3 {
		t.Errorf("a dry run: exit code %d, %+v, %v; want 6 tags, one of them of the referrers", code, sum, skipped)
	}
	if status := getStatus(t.Context(), r.URL()+"/v2/team/app/manifests/v1"); status != http.StatusNotFound {
		t.Errorf("after a dry run: status %d", status)
	}
	code, sum, skipped := runImport(t, r)
	if code != 4 || sum.Summary.Tags != 6 || sum.Summary.Untagged != 1 || sum.Summary.Skipped != 3 {
		t.Errorf("the import: exit code %d, %+v; want 6 tags, one untagged manifest, and 3 skipped", code, sum)
	}
	for tag, want := range map[string]string{"missing": "is missing", "short": "is damaged", "deleted": "was deleted"} {
		if !strings.Contains(skipped["team/broken:"+tag], want) {
			t.Errorf("%s: %q, want %q", tag, skipped["team/broken:"+tag], want)
		}
	}
	same := func(repo, tag string) {
		t.Helper()
		if got, want := crane.Run("digest", r.Ref(repo, tag)), crane.Run("digest", there(repo, tag)); got != want {
			t.Errorf("%s:%s: %s in Purser, %s in the other registry", repo, tag, got, want)
		}
		crane.Run("validate", "--remote", r.Ref(repo, tag))
	}
	for _, tag := range [][2]string{{"team/app", "v1"}, {"team/app", "v2"}, {"team/deep/tool", "latest"}, {"single", "1"}, {"team/app", "unused"}} {
		same(tag[0], tag[1])
	}
	crane.Run("manifest", r.Ref("team/app", digestOf(t, signature)))

	// Files of an image that was deleted in Purser stay in the storage.
	crane.Run("delete", r.Ref("team/app", digestOf(t, unused)))
	env := append(r.opt.env, "PURSER_DATA_DIR="+r.opt.dataDir)
	collected := func(objects int64) {
		t.Helper()
		eventually(t, readyWithin, func() error {
			if code, out := purser(t, env, "gc", "run"); code != 0 {
				t.Fatalf("purser gc run: exit code %d: %s", code, out)
			}
			code, out := purser(t, env, "gc", "status", "-o", "json")
			var status struct {
				Doomed struct {
					Foreign       struct{ Count int64 }
					Foreign_bytes int64
				}
			}
			if err := json.Unmarshal([]byte(out), &status); err != nil || code != 0 {
				return fmt.Errorf("purser gc status: exit code %d, %w: %s", code, err, out)
			}
			if status.Doomed.Foreign.Count != objects || status.Doomed.Foreign_bytes < 20<<10 {
				return fmt.Errorf("%+v, want %d objects", status.Doomed, objects)
			}
			return nil
		})
	}
	collected(2) // configuration and layer
	if _, err := os.Stat(file(layerOf(unused))); err != nil {
		t.Errorf("the other registry's file, before the import is finished: %v", err)
	}
	crane.Run("validate", "--remote", there("team/app", "unused"))

	// A second import brings new images, and leaves the newer of two tags.
	crane.Run("push", writeImage(t, newImage(t, 1, 1<<10), "v3"), there("team/app", "v3"))
	crane.Run("push", writeImage(t, newImage(t, 1, 1<<10), "latest"), there("team/deep/tool", "latest"))
	ours := newImage(t, 1, 1<<10)
	crane.Run("push", writeImage(t, ours, "1"), r.Ref("single", "1"))
	imported := time.Now()
	if code, sum, skipped := runImport(t, r); code != 4 || sum.Summary.Tags != 3 || sum.Summary.Up_to_date != 3 || sum.Summary.Newer != 1 {
		t.Errorf("the second import: exit code %d, %+v, %v; want v3, latest and unused", code, sum, skipped)
	}
	same("team/app", "v3")
	same("team/app", "unused")
	same("team/deep/tool", "latest")
	if got := crane.Run("digest", r.Ref("single", "1")); got != digestOf(t, ours) {
		t.Errorf("a tag that was pushed to Purser later points to %s", got)
	}

	// Once the import is finished, garbage goes.
	crane.Run("delete", r.Ref("team/app", digestOf(t, unused)))
	collected(4) // and those of the tag that was pushed to Purser
	// Skipped and deleted tags are older than the import, whatever the clocks.
	setTimes(t, storage, imported.Add(-time.Hour))
	if code, out := purser(t, env, "import", "--finish"); code != 3 || !strings.Contains(out, "This can't be undone") || !strings.Contains(out, "skipped thing") {
		t.Fatalf("finishing unasked: exit code %d: %s", code, out)
	}
	crane.Run("tag", there("team/app", "v1"), "late")
	// The clock of the other registry is behind.
	setTimes(t, filepath.Join(storage, "docker/registry/v2/repositories/team/app/_manifests/tags/late"), imported.Add(-2*time.Minute))
	if code, out := purser(t, env, "import", "--finish", "--yes"); code != 3 || !strings.Contains(out, "got 1 tag since it was imported, or in the 5m0s before that") || !strings.Contains(out, ": team/app:late.") {
		t.Fatalf("finishing while the other registry is in use: exit code %d: %s", code, out)
	}
	if code, out := purser(t, env, "import", "--finish", "--yes", "--force"); code != 0 || !strings.Contains(out, "belong to Purser") {
		t.Fatalf("finishing: exit code %d: %s", code, out)
	}
	if code, out := purser(t, env, "gc", "run"); code != 0 {
		t.Errorf("purser gc run: exit code %d: %s", code, out)
	}
	eventually(t, readyWithin, func() error {
		if _, err := os.Stat(file(layerOf(unused))); !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("the unused file is there: %w", err)
		}
		return nil
	})
	same("team/app", "v1")
	if code, out := purser(t, env, "import"); code != 1 || !strings.Contains(out, "finished") {
		t.Errorf("an import after the end: exit code %d: %s", code, out)
	}
	// The check finds files that no row owns, once they are so old that no request can be writing them.
	setTimes(t, storage, time.Now().AddDate(0, 0, -1))
	if code, out := purser(t, env, "check", "--deep"); code != 4 || !strings.Contains(out, "that nothing owns") || strings.Contains(out, "missing") {
		t.Errorf("purser check --deep: exit code %d: %s", code, out)
	}
}

// setTimes gives all files below a directory a time. The registry may delete some of them meanwhile.
func setTimes(t *testing.T, dir string, at time.Time) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err == nil {
			err = os.Chtimes(path, at, at)
		}
		if errors.Is(err, os.ErrNotExist) && path != dir {
			return nil
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
