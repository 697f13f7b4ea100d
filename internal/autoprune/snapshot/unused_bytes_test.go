package snapshot_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/purser-registry/purser/internal/autoprune/autoprunetest"
	"github.com/purser-registry/purser/internal/autoprune/snapshot"
	"github.com/purser-registry/purser/internal/catalog"
)

// TestUnusedBytes compares the bytes that the deletion of manifests would free, looked up blob by
// blob and by a scan of all references, with plain sums: random manifests in repositories of two
// namespaces share layers and configurations, and a blob may be both.
func TestUnusedBytes(t *testing.T) {
	t.Parallel()
	r, random := autoprunetest.New(t), rand.New(rand.NewPCG(1, 2))
	const blobs = 40
	for i := range blobs {
		r.Exec("INSERT INTO blobs (digest, size, storage_key) VALUES ($1, $2, $3)", autoprunetest.DigestOf(fmt.Sprint("blob ", i)).Bytes(), 1<<i, fmt.Sprint(i))
	}
	target, other := r.Repository("app/a"), []catalog.Repository{r.Repository("app/b"), r.Repository("elsewhere/a")}
	uses := map[int64]map[int]bool{}
	for i := range 60 {
		in := target
		if i%6 == 0 {
			in = other[i/6%2]
		}
		name, config := fmt.Sprint("manifest ", i), random.IntN(2*blobs)
		r.Exec(`INSERT INTO manifests (top_level_namespace_id, repository_id, digest, media_type, configuration_blob_digest, payload, total_size)
			VALUES ($1, $2, $3, 'a/b', (SELECT digest FROM blobs WHERE digest = $4), '{}', 2)`,
			in.NamespaceID, in.ID, autoprunetest.DigestOf(name).Bytes(), autoprunetest.DigestOf(fmt.Sprint("blob ", config)).Bytes())
		id := r.Manifest(in, name, "")
		uses[id] = map[int]bool{}
		if config < blobs {
			uses[id][config] = true
		}
		for range random.IntN(3) {
			layer := random.IntN(blobs)
			uses[id][layer] = true
			r.Exec(`INSERT INTO layers (top_level_namespace_id, repository_id, manifest_id, digest, size, media_type) VALUES ($1, $2, $3, $4, 1, 'a/b')
				ON CONFLICT DO NOTHING`, in.NamespaceID, in.ID, id, autoprunetest.DigestOf(fmt.Sprint("blob ", layer)).Bytes())
		}
	}
	all := autoprunetest.Values[int64](r, "SELECT id FROM manifests WHERE repository_id = $1 ORDER BY id", target.ID)
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
		lookedUp, scanned, err := snapshot.UnusedBothWays(t.Context(), r.DB, target, going)
		r.Must(err)
		if lookedUp != want || scanned != want {
			t.Fatalf("%d of %d manifests hold %b bytes alone; looked up %b, scanned %b", len(going), len(all), want, lookedUp, scanned)
		}
	}
}
