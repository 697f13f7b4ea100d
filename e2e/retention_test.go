package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/purser-registry/purser/internal/db/dbtest"
)

// refused runs a command that calls this registry, fails the test if it succeeds, and returns its
// output.
func (r *registry) refused(args ...string) string {
	r.t.Helper()
	code, out := purser(r.t, []string{"PURSER_SERVER=" + r.URL()}, args...)
	if code == 0 {
		r.t.Fatalf("purser %s succeeded:\n%s", strings.Join(args, " "), out)
	}
	return out
}

// TestDeployedStays: what a pipeline reports as deployed outlives a client that deletes it, a
// push that moves its tag, a policy, and garbage collection on another replica, until the
// reporter drops it.
func TestDeployedStays(t *testing.T) {
	beginOwn(t)
	dsn := dbtest.EmptyDSN(t)
	env := []string{"PURSER_GC_REVIEW_AFTER=0s", "PURSER_GC_REVIEW_BLOBS=false", "PURSER_GC_REVIEW_MANIFESTS=false",
		"PURSER_DATABASE_MAIN=" + dsn, "PURSER_STORAGE_FILESYSTEM_PATH=" + newDir(t), "PURSER_AUTOPRUNE_INTERVAL=1h"}
	a, b := startRegistry(t, options{env: env}), startRegistry(t, options{env: env})
	crane := toolClient(t, "crane")
	push := func(tag string) string {
		image := newImage(t, 1, 4<<10)
		crane.Run("push", writeImage(t, image, "v1"), a.Ref("shop/web", tag))
		return digestOf(t, image)
	}
	old, deployed := push("v1"), push("v2")
	moved := push("live")
	list := filepath.Join(t.TempDir(), "deployed")
	report := func(lines ...string) {
		t.Helper()
		if err := os.WriteFile(list, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		a.remote("report", "stdin", "prod", list, "--namespace", "shop", "--kind", "nomad", "--lease", "1h")
	}
	report(a.host+"/shop/web:v2 job web", a.host+"/shop/web@"+moved+" job live")
	says(t, a.remote("hold", "show", "prod", "--namespace", "shop"), deployed, moved, "job web", "nomad")

	says(t, b.refused("tag", "delete", "shop/web:v2", "--yes"), "prod (job web)", "override_holds")
	push("live") // moves the tag
	push("newest")
	says(t, b.remote("policy", "create", "shop", "--num-tags", "1"), "Created policy")
	says(t, b.remote("prune", "run", "shop"), "success")
	if got, want := strings.Fields(crane.Run("ls", b.host+"/shop/web")), []string{"newest", "v2"}; !slices.Equal(got, want) {
		t.Errorf("tags after pruning: %v, want %v", got, want)
	}
	b.collect(false)
	crane.Refused("manifest", a.Ref("shop/web", old))
	for _, digest := range []string{deployed, moved} {
		crane.Run("pull", b.Ref("shop/web", digest), filepath.Join(t.TempDir(), "image.tar"))
	}
	says(t, b.remote("gc", "explain", "shop/web@"+moved), "prod", "job live")

	report(a.host + "/shop/web:v2 job web")
	// The review of what was held comes again after some minutes.
	if _, err := openPool(t, dsn).Exec(t.Context(), "UPDATE gc_manifest_review_queue SET review_after = now()"); err != nil {
		t.Fatal(err)
	}
	a.collect(false)
	crane.Refused("manifest", a.Ref("shop/web", moved))
	says(t, a.remote("hold", "delete", "prod", "--namespace", "shop", "--yes"), "prod")
	says(t, b.remote("prune", "run", "shop"), "success")
	if got := strings.Fields(crane.Run("ls", b.host+"/shop/web")); !slices.Equal(got, []string{"newest"}) {
		t.Errorf("tags after the hold: %v", got)
	}
}

// TestDaringAPolicy: a policy is watched in observe mode, then switched on; it asks before it
// deletes more than it may, and deletes what was approved.
func TestDaringAPolicy(t *testing.T) {
	beginOwn(t)
	r := startRegistry(t, options{env: []string{"PURSER_AUTOPRUNE_INTERVAL=1h"}})
	crane := toolClient(t, "crane")
	file := writeImage(t, newImage(t, 1, 1<<10), "v1")
	for i := range 6 {
		crane.Run("push", file, r.Ref("app/web", fmt.Sprint("v", i)))
	}
	tags := func() int { return len(strings.Fields(crane.Run("ls", r.host+"/app/web"))) }

	var policy struct{ UUID string }
	created := r.remote("policy", "create", "app", "--num-tags", "2", "--mode", "observe", "--max-deleted", "3", "-o", "json")
	if err := json.Unmarshal([]byte(created), &policy); err != nil {
		t.Fatalf("%v: %s", err, created)
	}
	says(t, r.remote("prune", "run", "app"), "of 6 tags")
	says(t, r.remote("prune", "preview", "app"), "app/web:v0", "app/web:v3")
	if tags() != 6 {
		t.Errorf("observe left %d tags", tags())
	}
	r.manage("PUT", "/organization/app/autoprunepolicy/"+policy.UUID,
		map[string]any{"method": "number_of_tags", "numTags": 2, "mode": "on", "maxDeleted": 3}, nil, 204)
	r.remote("prune", "run", "app")
	if tags() != 6 {
		t.Errorf("a policy that may delete 3 tags has left %d of 6", tags())
	}
	says(t, r.remote("prune", "asks", "app"), policy.UUID, "4")
	says(t, r.remote("prune", "approve", "app", policy.UUID, "--yes"), "4")
	says(t, r.remote("prune", "run", "app"), "success") // the worker may have come by itself before
	if tags() != 2 {
		t.Errorf("%d tags are left after the approval, want 2", tags())
	}
	says(t, r.remote("audit", "list", "app"), "approve_autoprune")
}

// TestQuotaOfANamespace: a client is refused with the numbers when its push exceeds a quota, and
// may go on when the quota is raised.
func TestQuotaOfANamespace(t *testing.T) {
	beginOwn(t)
	dsn := dbtest.EmptyDSN(t)
	env := []string{"PURSER_DATABASE_MAIN=" + dsn, "PURSER_STORAGE_FILESYSTEM_PATH=" + newDir(t)}
	r := startRegistry(t, options{env: env})
	crane := toolClient(t, "crane")
	small, large := writeImage(t, newImage(t, 1, 10<<10), "v1"), writeImage(t, newImage(t, 1, 200<<10), "v1")
	crane.Run("push", small, r.Ref("app/web", "v1"))
	r.remote("quota", "set", "app", "--bytes", "100KiB", "--tags", "3")
	eventually(t, time.Minute, func() error { // the content is counted beside
		if out := r.remote("quota", "show", "app"); !strings.Contains(out, "1 of 3") {
			return fmt.Errorf("the quota:\n%s", out)
		}
		return nil
	})
	crane.Run("push", small, r.Ref("app/other", "v1"))
	says(t, crane.Refused("push", large, r.Ref("app/web", "v2")), "DENIED", "namespace app may have 100.0 KiB of blobs")
	crane.Run("push", large, r.Ref("free/web", "v2"))
	crane.Run("push", small, r.Ref("app/web", "v2"))
	says(t, crane.Refused("tag", r.Ref("app/web", "v1"), "v3"), "DENIED", "may have 3 tags")
	r.remote("quota", "set", "app", "--bytes", "1MiB", "--tags", "none")
	crane.Run("push", large, r.Ref("app/web", "v3"))
	says(t, r.remote("quota", "show", "app"), "of 1.0 MiB", "4, no limit")

	check := func(args ...string) (int, string) { return purser(t, env, append([]string{"check"}, args...)...) }
	if code, out := check(); code != 0 {
		t.Errorf("check exited with %d:\n%s", code, out)
	}
	if _, err := openPool(t, dsn).Exec(t.Context(), "UPDATE namespacequotaslots SET bytes = bytes + 7 WHERE slot = 3"); err != nil {
		t.Fatal(err)
	}
	code, out := check()
	if says(t, out, "1 quota with numbers that differ"); code == 0 {
		t.Error("check found a wrong number and exited with 0")
	}
	if code, out := check("--repair"); code != 0 {
		t.Errorf("check --repair exited with %d:\n%s", code, out)
	}
	if code, out := check(); code != 0 {
		t.Errorf("after the repair check exited with %d:\n%s", code, out)
	}
}

// TestPruneByLabels: a policy with labels and one with platforms select images by their
// configurations, which the registry reads from its store, and indexes by their images.
func TestPruneByLabels(t *testing.T) {
	beginOwn(t)
	r := startRegistry(t, options{env: []string{"PURSER_AUTOPRUNE_INTERVAL=1h"}})
	crane := toolClient(t, "crane")
	image := func(architecture, stage string) v1.Image {
		img := newPlatformImage(t, 1, 1<<10, architecture)
		file, err := img.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		file = file.DeepCopy()
		file.Config.Labels = map[string]string{"stage": stage}
		if img, err = mutate.ConfigFile(img, file); err != nil {
			t.Fatal(err)
		}
		return img
	}
	for tag, img := range map[string]v1.Image{"test": image("amd64", "test-1"), "prod": image("amd64", "prod"), "arm": image("arm64", "prod")} {
		crane.Run("push", writeImage(t, img, "v1"), r.Ref("app/web", tag))
	}
	for tag, stages := range map[string][2]string{"multi": {"test-2", "test-3"}, "mixed": {"test-4", "prod"}} {
		index := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex),
			mutate.IndexAddendum{Add: image("amd64", stages[0])}, mutate.IndexAddendum{Add: image("arm64", stages[1])})
		digest, err := index.Digest()
		if err != nil {
			t.Fatal(err)
		}
		crane.Run("push", writeIndex(t, index, "v1"), r.Ref("app/web", "layout"), "--index") // an index that lists the index
		crane.Run("tag", r.Ref("app/web", digest.String()), tag)
	}
	says(t, r.refused("policy", "create", "app", "--older-than", "1s", "--label", "stage"), "KEY=VALUE")
	says(t, r.remote("policy", "create", "app", "--num-tags", "1", "--label", "stage=test-*"), "Created policy")
	says(t, r.remote("prune", "preview", "app", "--num-tags", "1", "--platform", "linux/arm64"), "0 of 6 tags")
	says(t, r.remote("prune", "run", "app"), "success: deleted 1 of 6 tags")
	left := strings.Fields(crane.Run("ls", r.host+"/app/web"))
	if slices.Contains(left, "test") == slices.Contains(left, "multi") || len(left) != 5 {
		t.Errorf("tags after pruning: %v", left)
	}
}

// TestKeepUntagged: a policy keeps the image of a deleted tag for longer than garbage collection's
// delay, and the image goes when the policy's time is over.
func TestKeepUntagged(t *testing.T) {
	beginOwn(t)
	dsn := dbtest.EmptyDSN(t)
	r := startRegistry(t, options{env: []string{"PURSER_GC_REVIEW_AFTER=0s", "PURSER_GC_REVIEW_BLOBS=false", "PURSER_GC_REVIEW_MANIFESTS=false",
		"PURSER_DATABASE_MAIN=" + dsn, "PURSER_STORAGE_FILESYSTEM_PATH=" + newDir(t), "PURSER_AUTOPRUNE_INTERVAL=1h"}})
	crane := toolClient(t, "crane")
	push := func(repository string) (digest string) {
		image := newImage(t, 1, 4<<10)
		crane.Run("push", writeImage(t, image, "v1"), r.Ref(repository, "v1"))
		crane.Run("push", writeImage(t, newImage(t, 1, 4<<10), "v1"), r.Ref(repository, "v2"))
		return digestOf(t, image)
	}
	kept, free := push("app/kept"), push("app/free")
	says(t, r.remote("policy", "create", "app", "--older-than", "90d", "--keep-untagged", "1h", "--repositories", "app/kept"), "Created policy")
	says(t, r.remote("policy", "list", "app"), "untagged manifests stay 1h")
	r.remote("tag", "delete", "app/kept:v1", "--yes")
	r.remote("tag", "delete", "app/free:v1", "--yes")
	r.collect(false)
	crane.Refused("manifest", r.Ref("app/free", free))
	crane.Run("pull", r.Ref("app/kept", kept), filepath.Join(t.TempDir(), "image.tar"))
	says(t, r.remote("gc", "explain", "app/kept@"+kept), "kept until ", "keeps untagged manifests for 1h", "(keep_untagged)")
	if _, err := openPool(t, dsn).Exec(t.Context(), "UPDATE gc_manifest_review_queue SET review_after = now(), unused_since = unused_since - interval '1 hour'"); err != nil {
		t.Fatal(err)
	}
	r.collect(false)
	crane.Refused("manifest", r.Ref("app/kept", kept))
}
