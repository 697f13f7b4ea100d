package check_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"iter"
	mrand "math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/check"
	"github.com/purser-registry/purser/internal/oci"
)

// hooked is a store that calls a function of the test before it lists, stats or opens
// objects.
type hooked struct {
	blob.Store
	list       func(prefix string)
	stat, open func(key string)
	read       func(key string) (breaks bool)
	multiparts []blob.Unfinished
}

func (h hooked) List(ctx context.Context, prefix string) iter.Seq2[blob.Object, error] {
	return func(yield func(blob.Object, error) bool) {
		if h.list != nil {
			h.list(prefix)
		}
		h.Store.List(ctx, prefix)(yield)
	}
}

func (h hooked) Stat(ctx context.Context, key string) (blob.Object, error) {
	if h.stat != nil {
		h.stat(key)
	}
	return h.Store.Stat(ctx, key)
}

func (h hooked) Open(ctx context.Context, key string, off, length int64) (io.ReadCloser, error) {
	if h.open != nil {
		h.open(key)
	}
	r, err := h.Store.Open(ctx, key, off, length)
	if err == nil && h.read != nil && h.read(key) {
		// Behave like a store that keeps no files open: if the object is deleted while it is
		// read, reading fails in the middle.
		r.Close() //nolint:errcheck // only read
		return io.NopCloser(io.MultiReader(strings.NewReader("some"), failing{})), nil
	}
	return r, err
}

func (h hooked) Unfinished(_ context.Context, prefix string) iter.Seq2[blob.Unfinished, error] {
	return func(yield func(blob.Unfinished, error) bool) {
		for _, m := range h.multiparts {
			if strings.HasPrefix(m.Base, prefix) && !yield(m, nil) {
				return
			}
		}
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("the connection is gone") }

// once runs f for the first call only.
func once[T any](f func(T)) func(T) {
	var o sync.Once
	return func(v T) { o.Do(func() { f(v) }) }
}

// after returns a hook that runs f when the check has read the owner rows of the part to
// which `key` belongs, but hasn't listed the objects of this part yet.
func after(key string, f func()) func(prefix string) {
	return func(prefix string) {
		if strings.HasPrefix(key, prefix) {
			f()
		}
	}
}

// first returns a hook for hooked.list. Before the store lists the objects of the first part
// of the keys, the hook calls f again and again, until f returns a key of this part.
func first(f func() (key string)) func(prefix string) {
	return after("0", func() {
		for !strings.HasPrefix(f(), "0") {
		}
	})
}

// Clients and garbage collection change blobs and uploads at the worst moments of a check.
// The check must report no problem.
func TestCheckIsNotFooledByWhatMoves(t *testing.T) {
	t.Parallel()
	tests := map[string]func(b *storeBundle) check.Options{
		// In the next cases, something changes after the check has read the owner rows and
		// before it lists the objects.
		"a blob is deleted and swept": func(b *storeBundle) check.Options {
			o := b.push("blob")
			return check.Options{Store: hooked{Store: b.store, list: after(o.Key, func() { b.collect(o.Digest); b.sweep() })}}
		},
		"a blob is pushed": func(b *storeBundle) check.Options {
			return check.Options{Store: hooked{Store: b.store, list: first(func() string { return b.old(b.push(rand.Text()).Key) })}}
		},
		"an old upload is committed": func(b *storeBundle) check.Options {
			u, key, err := b.begun(b.t.Context(), "blob")
			if err != nil {
				b.t.Fatal(err)
			}
			b.old(key)
			return check.Options{Store: hooked{Store: b.store, list: after(key, func() {
				if err := b.catalog.CommitUpload(b.t.Context(), u, oci.Compute(oci.SHA256, []byte("blob")), key, false); err != nil {
					b.t.Error(err)
				}
			})}}
		},
		"a new upload is cancelled": func(b *storeBundle) check.Options {
			return check.Options{Store: hooked{Store: b.store, list: first(func() string {
				u := b.upload()
				b.old(u.StorageKey + "-0")
				if err := b.catalog.CancelUpload(b.t.Context(), "team/app", u.UploadID()); err != nil {
					b.t.Error(err)
				}
				return u.StorageKey
			})}}
		},
		// In the next cases, something changes after the check has listed the objects, and
		// before it looks for an owner of an object or looks at the object again.
		"an object without an owner is deleted by who wrote it": func(b *storeBundle) check.Options {
			key := b.old(b.object(5))
			return check.Options{Store: hooked{Store: b.store, stat: once(func(string) {
				if err := b.store.Delete(b.t.Context(), []string{key}); err != nil {
					b.t.Error(err)
				}
			})}}
		},
		"a blob without a row in the first look has one in the second": func(b *storeBundle) check.Options {
			return check.Options{Store: hooked{Store: b.store,
				list: first(func() string { return b.old(b.push(rand.Text()).Key) }),
				stat: once(func(string) { b.t.Error("the object of a blob was taken for one without an owner") }),
			}}
		},
		// In the next cases, something changes after the check has found that an object is
		// missing, and before it looks at the blob's row again.
		"a blob whose object is missing is deleted": func(b *storeBundle) check.Options {
			o := b.push("blob")
			return check.Options{Store: hooked{Store: b.store, list: after(o.Key, func() {
				if err := b.store.Delete(b.t.Context(), []string{o.Key}); err != nil {
					b.t.Error(err)
				}
			}), stat: once(func(string) { b.collect(o.Digest) })}}
		},
		"a lost blob is pushed again": func(b *storeBundle) check.Options {
			o := b.push("blob")
			if _, err := b.catalog.MarkLost(b.t.Context(), []catalog.StoredBlob{o}); err != nil {
				b.t.Fatal(err)
			}
			if err := b.store.Delete(b.t.Context(), []string{o.Key}); err != nil {
				b.t.Fatal(err)
			}
			return check.Options{Store: hooked{Store: b.store, stat: once(func(string) { b.push("blob") })}}
		},
		// These changes happen while the check reads a blob's content.
		"a blob is deleted before it is read": func(b *storeBundle) check.Options {
			o := b.push("blob")
			return check.Options{Deep: true, Store: hooked{Store: b.store, open: once(func(string) { b.collect(o.Digest); b.sweep() })}}
		},
		"a blob is deleted while it is read": func(b *storeBundle) check.Options {
			o := b.push("some blob")
			return check.Options{Deep: true, Store: hooked{Store: b.store, read: func(key string) bool {
				if key == o.Key {
					b.collect(o.Digest)
					b.sweep()
				}
				return key == o.Key
			}}}
		},
		// These multipart uploads have an owner, or are young.
		"multipart uploads have owners": func(b *storeBundle) check.Options {
			long := time.Now().Add(-3 * time.Hour)
			u, v := b.upload(), b.upload()
			if err := b.catalog.CancelUpload(b.t.Context(), "team/app", v.UploadID()); err != nil {
				b.t.Fatal(err)
			}
			return check.Options{Store: hooked{Store: b.store, multiparts: []blob.Unfinished{
				{Base: u.StorageKey, Began: long}, {Base: v.StorageKey, Began: long}, {Base: blob.NewBase(), Began: time.Now()},
			}}}
		},
	}
	for name, prepare := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setupStore(t)
			b.push("another")
			o := prepare(b)
			b.finds(o)
		})
	}
}

// Clients push blobs, cancel uploads and push again, while blobs are deleted and a sweeper
// deletes objects. All objects look old, so their age doesn't protect them. Meanwhile
// checks with Repair run, and must find nothing.
func TestCheckBesideARegistry(t *testing.T) {
	t.Parallel()
	b := setupStore(t)
	store := aged{b.store}
	b.start(b.sweeper().Run)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	var group errgroup.Group
	for client := range 4 {
		seed := mrand.Uint64()
		group.Go(func() error {
			r := mrand.New(mrand.NewPCG(seed, uint64(client)))
			for ctx.Err() == nil {
				if err := b.live(r); err != nil {
					return fmt.Errorf("seed %d, client %d: %w", seed, client, err)
				}
			}
			return nil
		})
	}
	checks := 0
	for ctx.Err() == nil {
		found, report, err := b.check(check.Options{Store: store, Deep: checks%2 == 0, Repair: true, Parallel: 2})
		if err != nil || len(found) != 0 {
			t.Errorf("found %q, %v", found, err)
		}
		if checks++; checks == 1 {
			t.Logf("%d objects, %d blobs", report.Objects, report.Blobs)
		}
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d checks", checks)
	b.finds(check.Options{Store: store, Deep: true})
}

// live makes one random request of a client, or deletes a blob as garbage collection does.
func (b *storeBundle) live(r *mrand.Rand) error {
	ctx := context.Background()
	content := fmt.Sprint("content ", r.IntN(40))
	d := oci.Compute(oci.SHA256, []byte(content))
	switch r.IntN(4) {
	case 0:
		_, err := b.db.Pool.Exec(ctx, `WITH d AS (DELETE FROM blobs WHERE digest = $1 RETURNING storage_key)
			INSERT INTO gc_doomed_objects (storage_key) SELECT storage_key FROM d`, d.Bytes())
		return err
	case 1:
		u, _, err := b.begun(ctx, content)
		if err != nil {
			return err
		}
		return b.catalog.CancelUpload(ctx, "team/app", u.UploadID())
	}
	u, key, err := b.begun(ctx, content)
	if err != nil {
		return err
	}
	return b.catalog.CommitUpload(ctx, u, d, key, r.IntN(2) == 0)
}

// aged is a store that lists all objects as a day older than they are, so that their age
// doesn't protect them.
type aged struct{ blob.Store }

func (a aged) List(ctx context.Context, prefix string) iter.Seq2[blob.Object, error] {
	return func(yield func(blob.Object, error) bool) {
		for o, err := range a.Store.List(ctx, prefix) {
			o.Modified = o.Modified.Add(-24 * time.Hour)
			if !yield(o, err) {
				return
			}
		}
	}
}
