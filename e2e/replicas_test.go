package e2e

import (
	"sync"
	"testing"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/purser-registry/purser/internal/db/dbtest"
)

// startReplicas starts two registries at the same time. They share an empty database, in which
// no registry has created its tables yet, and a store.
func startReplicas(t *testing.T, storage func(testing.TB) []string) (a, b *registry) {
	t.Helper()
	env := append(storage(t), "PURSER_DATABASE_MAIN="+dbtest.EmptyDSN(t))
	replicas := make([]*registry, 2)
	errs := make([]error, 2)
	var wg sync.WaitGroup
	for i := range replicas {
		r := &registry{t: t, opt: options{dataDir: newDir(t), env: env}}
		replicas[i] = r
		t.Cleanup(func() {
			if r.p != nil {
				r.cleanup()
			}
		})
		wg.Go(func() { errs[i] = r.tryStart() })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			t.Fatalf("starting two replicas at once: %v", err)
		}
	}
	return replicas[0], replicas[1]
}

func eachStorage(t *testing.T, test func(t *testing.T, a, b *registry)) {
	for name, storage := range storages {
		t.Run(name, func(t *testing.T) {
			beginOwn(t)
			a, b := startReplicas(t, storage)
			test(t, a, b)
		})
	}
}

func TestUploadContinuesOnAnotherReplica(t *testing.T) {
	eachStorage(t, func(t *testing.T, a, b *registry) {
		ctx, content := t.Context(), randomBytes(13<<20)
		u, err := a.API().startUpload(ctx, "replicas/upload")
		if err != nil {
			t.Fatal(err)
		}
		// The test sends the chunks to both replicas in turn. The chunks end at other offsets
		// than the parts in which Purser uploads the content to S3.
		cut := []int{0, 3<<20 + 17, 3<<20 + 18, 9 << 20, 12<<20 + 5}
		for i := range len(cut) - 1 {
			if err := a.API().patch(ctx, u, content[cut[i]:cut[i+1]]); err != nil {
				t.Fatalf("chunk %d: %v", i, err)
			}
			if err := b.API().status(ctx, u); err != nil || u.offset != int64(cut[i+1]) {
				t.Fatalf("chunk %d: the other replica has %d bytes (%v), want %d", i, u.offset, err, cut[i+1])
			}
			a, b = b, a
		}
		want := descriptor(v1.MediaTypeImageLayer, content)
		if err := b.API().finish(ctx, u, content[cut[len(cut)-1]:], want.Digest); err != nil {
			t.Fatal(err)
		}
		for _, r := range []*registry{a, b} {
			if err := r.API().pullBlob(ctx, "replicas/upload", want); err != nil {
				t.Error(err)
			}
		}
	})
}
