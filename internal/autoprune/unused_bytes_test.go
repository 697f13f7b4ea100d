package autoprune_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/purser-registry/purser/internal/catalog"
)

// TestUnusedBytes compares the bytes that the deletion of manifests would free, looked up blob by
// blob and by a scan of all references, with plain sums: random manifests in repositories of two
// namespaces share layers and configurations, and a blob may be both.
func TestUnusedBytes(t *testing.T) {
	t.Parallel()
	r, random := setup(t), rand.New(rand.NewPCG(1, 2))
	const blobs = 40
	for i := range blobs {
		r.exec("INSERT INTO blobs (digest, size, storage_key) VALUES ($1, $2, $3)", digestOf(fmt.Sprint("blob ", i)).Bytes(), 1<<i, fmt.Sprint(i))
	}
	target, other := r.repository("app/a"), []catalog.Repository{r.repository("app/b"), r.repository("elsewhere/a")}
	uses := map[int64]map[int]bool{}
	for i := range 60 {
		in := target
		if i%6 == 0 {
			in = other[i/6%2]
		}
		name, config := fmt.Sprint("manifest ", i), random.IntN(2*blobs)
		r.exec(`INSERT INTO manifests (top_level_namespace_id, repository_id, digest, media_type, configuration_blob_digest, payload, total_size)
			VALUES ($1, $2, $3, 'a/b', (SELECT digest FROM blobs WHERE digest = $4), '{}', 2)`,
			in.NamespaceID, in.ID, digestOf(name).Bytes(), digestOf(fmt.Sprint("blob ", config)).Bytes())
		id := r.manifest(in, name, "")
		uses[id] = map[int]bool{}
		if config < blobs {
			uses[id][config] = true
		}
		for range random.IntN(3) {
			layer := random.IntN(blobs)
			uses[id][layer] = true
			r.exec(`INSERT INTO layers (top_level_namespace_id, repository_id, manifest_id, digest, size, media_type) VALUES ($1, $2, $3, $4, 1, 'a/b')
				ON CONFLICT DO NOTHING`, in.NamespaceID, in.ID, id, digestOf(fmt.Sprint("blob ", layer)).Bytes())
		}
	}
	all := values[int64](r, "SELECT id FROM manifests WHERE repository_id = $1 ORDER BY id", target.ID)
	for range 30 {
		random.Shuffle(len(all), func(i, k int) { all[i], all[k] = all[k], all[i] })
		going := all[:random.IntN(len(all)+1)]
		gone, want := map[int64]bool{}, int64(0)
		for _, id := range going {
			gone[id] = true
		}
		for i := range blobs {
			used, stays := false, false
			for id, list := range uses {
				used = used || list[i] && gone[id]
				stays = stays || list[i] && !gone[id]
			}
			if used && !stays {
				want += 1 << i
			}
		}
		lookedUp, scanned, err := r.pruner.Unused(t.Context(), target, going)
		r.must(err)
		if lookedUp != want || scanned != want {
			t.Fatalf("%d of %d manifests hold %b bytes alone; looked up %b, scanned %b", len(going), len(all), want, lookedUp, scanned)
		}
	}
}
