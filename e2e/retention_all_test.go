//go:build all

package e2e

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/purser-registry/purser/internal/db/dbtest"
)

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
	created := r.remote("policy", "create", "app", "--num-tags", "2", "--mode", "observe", "--max-deleted", "3", "--yes", "-o", "json")
	warning, answer, _ := strings.Cut(created, "{") // which stand on stderr and stdout
	says(t, warning, "it would delete 4 of 6 tags now, more than half")
	if err := json.Unmarshal([]byte("{"+answer), &policy); err != nil {
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
	says(t, r.remote("policy", "create", "app", "--num-tags", "1", "--label", "stage=test-*", "--mode", "on", "--yes"), "Created policy")
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
	says(t, r.remote("policy", "create", "app", "--older-than", "90d", "--keep-untagged", "1h", "--repositories", "app/kept", "--mode", "on", "--yes"), "Created policy")
	says(t, r.remote("policy", "list", "app"), "untagged manifests stay 1h")
	r.remote("tag", "delete", "app/kept:v1", "--yes")
	r.remote("tag", "delete", "app/free:v1", "--yes")
	r.collect(false)
	crane.Refused("manifest", r.Ref("app/free", free))
	crane.Run("pull", r.Ref("app/kept", kept), filepath.Join(t.TempDir(), "image.tar"))
	says(t, r.remote("gc", "explain", "app/kept@"+kept), "kept until ", "keeps untagged manifests for 1h", "a policy keeps it although nothing uses it")
	if _, err := openPool(t, dsn).Exec(t.Context(), "UPDATE gc_manifest_review_queue SET review_after = now(), unused_since = unused_since - interval '1 hour'"); err != nil {
		t.Fatal(err)
	}
	r.collect(false)
	crane.Refused("manifest", r.Ref("app/kept", kept))
}
