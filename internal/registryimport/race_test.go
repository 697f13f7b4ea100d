package registryimport_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/gc"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/registryimport"
)

// race is a registry in which an import is repeated while others push, delete and collect garbage.
type race struct {
	*other
	b         catalogtest.Bundle
	contents  []string     // of blobs, all of them in the other registry's storage
	manifests []oci.Digest // there too, each with the tag of its index
	finishing atomic.Bool  // FinishImports was called
}

// TestImportRace repeats imports, on two replicas, while the same blobs are pushed, tags and
// manifests deleted, blobs marked as lost, reviews run with short delays and a sweeper deletes. At a
// random moment the import is finished. Before that, no file of the other registry may disappear. At
// the end, each object has one owner, everything in use is whole, and what isn't in use is gone.
func TestImportRace(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	dsn := dbtest.DSN(t)
	r := &race{other: newOther(t), b: catalogtest.Replica(t, dsn)}
	replica := catalogtest.Replica(t, dsn)
	if err := r.b.SetReviewDelays(t.Context(), 5*time.Millisecond, map[string]time.Duration{"blob_upload": 60 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	r.contents = nil
	for i := range 6 {
		name := fmt.Sprint(i)
		r.contents = append(r.contents, `{"name":"`+name+`"}`, "the layer of "+name)
		payload := r.image(name, nil)
		for repository := range 2 {
			r.manifest(fmt.Sprint("acme/app", repository), payload, longAgo, name)
		}
		r.manifests = append(r.manifests, oci.Compute(oci.SHA256, payload))
	}
	if report, skipped := r.run(r.b, nil); report.Tags != 12 || len(skipped) > 0 {
		t.Fatalf("the first import: %+v, skipped %q", report, skipped)
	}
	sweeper, err := gc.NewSweeper(gc.SweeperOptions{Collector: r.b.Collector, Store: r.store, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Second)
	defer stop()
	sweeping, stopSweeping := context.WithCancel(t.Context())
	defer stopSweeping()
	var sweeps sync.WaitGroup
	sweeps.Go(func() { sweeper.Run(sweeping) }) //nolint:errcheck // it ends with its context
	r.together(ctx, seed, []func(context.Context, *rand.Rand) error{
		r.imports(r.b), r.imports(replica), r.pushes(r.b), r.pushes(replica), r.deletions(replica), r.losses,
		func(ctx context.Context, _ *rand.Rand) error { return r.b.TryReviews(ctx, 3) },
		func(ctx context.Context, _ *rand.Rand) error { return replica.TryReviews(ctx, 100) },
		func(context.Context, *rand.Rand) error { sweeper.Wake(); return nil },
		r.filesStay,
	})
	r.settle(sweeper)
	stopSweeping()
	sweeps.Wait()
}

// together runs the functions again and again, each in a goroutine, until ctx ends. After a random
// part of the time it finishes the import.
func (r *race) together(ctx context.Context, seed uint64, functions []func(context.Context, *rand.Rand) error) {
	var all sync.WaitGroup
	for i, f := range functions {
		all.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(i)))
			for ctx.Err() == nil {
				if err := f(ctx, random); err != nil && ctx.Err() == nil {
					r.t.Errorf("function %d: %v", i, err)
					return
				}
				time.Sleep(time.Duration(random.IntN(3000)) * time.Microsecond) // to vary the interleavings
			}
		})
	}
	deadline, _ := ctx.Deadline()
	select {
	case <-time.After(time.Duration(rand.New(rand.NewPCG(seed, 99)).Float64() * float64(time.Until(deadline)))):
	case <-ctx.Done():
	}
	r.finishing.Store(true)
	if _, _, err := r.b.FinishImports(r.t.Context()); err != nil {
		r.t.Error(err)
	}
	all.Wait()
}

// imports returns a function that imports. What it skips was collected meanwhile.
func (r *race) imports(b catalogtest.Bundle) func(context.Context, *rand.Rand) error {
	return func(ctx context.Context, random *rand.Rand) error {
		_, err := registryimport.Run(ctx, registryimport.Options{Catalog: b.Catalog, Store: r.store, Untagged: random.IntN(2) == 0})
		if errors.Is(err, catalog.ErrImportFinished) && r.finishing.Load() {
			return nil
		}
		return err
	}
}

// pushes returns a function that pushes one of the blobs, with an object of its own.
func (r *race) pushes(b catalogtest.Bundle) func(context.Context, *rand.Rand) error {
	return func(ctx context.Context, random *rand.Rand) error {
		content := r.contents[random.IntN(len(r.contents))]
		list, err := b.StartUploads(ctx, catalog.StartOptions{N: 1})
		if err != nil {
			return err
		}
		u := list[0]
		u.Repository, u.Size = fmt.Sprint("acme/app", random.IntN(3)), int64(len(content))
		key := fmt.Sprintf("%s-%d", u.StorageKey, u.Ticket)
		if err := r.store.(blob.Putter).Put(ctx, key, u.Size, strings.NewReader(content)); err != nil {
			return err
		}
		return b.CommitUpload(ctx, u, oci.Compute(oci.SHA256, []byte(content)), key, false)
	}
}

func (r *race) deletions(b catalogtest.Bundle) func(context.Context, *rand.Rand) error {
	return func(ctx context.Context, random *rand.Rand) error {
		repository := fmt.Sprint("acme/app", random.IntN(2))
		var err error
		if random.IntN(2) == 0 {
			err = b.DeleteManifest(ctx, repository, r.manifests[random.IntN(len(r.manifests))])
		} else {
			err = b.DeleteTag(ctx, repository, fmt.Sprint(random.IntN(len(r.manifests))))
		}
		if oci.CodeOf(err) != "" {
			return nil // it isn't there
		}
		return err
	}
}

// losses marks a blob as lost, as if its object had disappeared.
func (r *race) losses(ctx context.Context, random *rand.Rand) error {
	d := oci.Compute(oci.SHA256, []byte(r.contents[random.IntN(len(r.contents))]))
	s, there, err := r.b.StoredBlob(ctx, d)
	if err != nil || !there || random.IntN(10) > 0 {
		return err
	}
	_, err = r.b.MarkLost(ctx, []catalog.StoredBlob{s})
	return err
}

// filesStay expects that no file of the other registry is gone before the import is finished.
func (r *race) filesStay(ctx context.Context, _ *rand.Rand) error {
	for _, content := range r.contents {
		key := r.data(oci.Compute(oci.SHA256, []byte(content)))
		if _, err := r.store.Stat(ctx, key); errors.Is(err, blob.ErrNotFound) && !r.finishing.Load() {
			return fmt.Errorf("the file %s is gone", key)
		}
	}
	return nil
}

// settle reviews and sweeps all that is left, and then checks everything.
func (r *race) settle(sweeper *gc.Sweeper) {
	r.t.Helper()
	r.b.AtOnce(r.t)
	r.b.DueNow(r.t)
	r.b.ReviewAll(r.t)
	catalogtest.Eventually(r.t, "the sweeper is done", func() bool {
		sweeper.Wake()
		return r.b.Count(r.t, "SELECT count(*) FROM gc_doomed_objects WHERE again_at IS DISTINCT FROM delete_after") == 0
	})
	r.b.Owned(r.t)
	r.b.Complete(r.t)
	if n := r.b.Rows(r.t, "gc_foreign_objects"); n != 0 {
		r.t.Errorf("%d foreign objects are left after the end", n)
	}
	// Lost blobs whose object is right are found by the check; it is no error here.
	r.b.Exec(r.t, "UPDATE blobs SET lost_at = NULL")
	r.clean(r.b)
	for _, content := range r.contents {
		d := oci.Compute(oci.SHA256, []byte(content))
		s, _, err := r.b.StoredBlob(r.t.Context(), d)
		if err != nil {
			r.t.Fatal(err)
		}
		_, err = r.store.Stat(r.t.Context(), r.data(d))
		if used, there := s.Key == r.data(d), err == nil; used != there {
			r.t.Errorf("blob %s has the object %q, and the other registry's file is there: %t", d, s.Key, there)
		}
	}
}

// TestEndWaitsForImports finishes an import while a transaction of the import, which has begun, waits for
// a review: the end waits for this transaction, and later ones are refused.
func TestEndWaitsForImports(t *testing.T) {
	t.Parallel()
	b, o := catalogtest.Setup(t), newOther(t)
	o.manifest("acme/app", o.image("one", nil), longAgo, "v1")
	o.run(b, nil)
	layer := oci.Compute(oci.SHA256, []byte("the layer of one"))
	add := func() error {
		return b.AddForeignBlobs(context.WithoutCancel(t.Context()), "acme/app", "docker/registry/v2/",
			[]catalog.ForeignBlob{{Digest: layer, Key: o.data(layer), Size: 16}})
	}
	reviewing := b.Session(t)
	if !reviewing.Collecting(t, layer) {
		t.Fatal("the layer's review can't begin")
	}
	added := catalogtest.Later(add)
	awaitLock(t, b, added)
	finished := catalogtest.Later(func() error {
		_, _, err := b.FinishImports(context.WithoutCancel(t.Context()))
		return err
	})
	catalogtest.Eventually(t, "the end waits too", func() bool { return b.Waiting(t) == 2 })
	reviewing.Exec(t, "ROLLBACK")
	if err := errors.Join(catalogtest.Soon(t, "the import", added), catalogtest.Soon(t, "the end", finished)); err != nil {
		t.Error(err)
	}
	if err := add(); !errors.Is(err, catalog.ErrImportFinished) {
		t.Errorf("adding a blob after the end: %v", err)
	}
}

// An import that meets the review that deletes a blob takes the object back.
func TestImportTakesBack(t *testing.T) {
	t.Parallel()
	b, o := catalogtest.Setup(t), newOther(t)
	o.manifest("acme/app", o.image("one", nil), longAgo, "v1")
	o.run(b, nil)
	layer := oci.Compute(oci.SHA256, []byte("the layer of one"))
	b.Exec(t, "TRUNCATE tags, manifests, layers, manifest_references, repository_blobs, gc_blobs_layers, gc_blobs_configurations, missing_children CASCADE")
	reviewing := b.Session(t)
	if !reviewing.Collecting(t, layer) {
		t.Fatal("the layer's review can't begin")
	}
	imported := catalogtest.Later(func() error {
		_, err := registryimport.Run(context.WithoutCancel(t.Context()), registryimport.Options{Catalog: b.Catalog, Store: o.store})
		return err
	})
	catalogtest.Eventually(t, "the import waits for the review", func() bool { return b.Waiting(t) == 1 })
	reviewing.Collect(t, layer)
	if err := catalogtest.Soon(t, "the import", imported); err != nil {
		t.Fatal(err)
	}
	if b.Owned(t); b.Rows(t, "gc_foreign_objects") != 0 || len(tagsOf(t, b, "acme/app")) != 1 {
		t.Errorf("%d foreign objects, tags %v", b.Rows(t, "gc_foreign_objects"), tagsOf(t, b, "acme/app"))
	}
	o.clean(b)
}
