package gc_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	mrand "math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/gc"
	"github.com/purser-registry/purser/internal/oci"
)

// begun starts an upload and writes content to one of its objects.
func (b *storeBundle) begun(ctx context.Context, content string) (u catalog.Upload, key string, err error) {
	list, err := b.catalog.StartUploads(ctx, 1)
	if err != nil {
		return u, "", err
	}
	u = list[0]
	u.Repository, u.Size = "team/app", int64(len(content))
	var next int64
	w, err := b.store.Resume(ctx, u.StorageKey, nil, 0,
		func(context.Context) (int64, error) { return 0, nil },
		func(_ context.Context, n int) (int64, error) { next += int64(n); return next - int64(n), nil })
	if err != nil {
		return u, "", err
	}
	defer w.Close() //nolint:errcheck // Finish has said whether all is well
	if _, err := io.WriteString(w, content); err != nil {
		return u, "", err
	}
	key, err = w.Finish(ctx)
	return u, key, err
}

func (b *storeBundle) tryPush(ctx context.Context, content string) (catalog.Owner, error) {
	d := oci.Compute(oci.SHA256, []byte(content))
	u, key, err := b.begun(ctx, content)
	if err == nil {
		err = b.catalog.CommitUpload(ctx, u, d, key, false)
	}
	if err != nil {
		return catalog.Owner{}, err
	}
	o, _, err := b.catalog.BlobOwner(ctx, d)
	return o, err
}

// push stores content as a blob and returns its row.
func (b *storeBundle) push(content string) catalog.Owner {
	b.t.Helper()
	o, err := b.tryPush(b.t.Context(), content)
	if err != nil {
		b.t.Fatal(err)
	}
	return o
}

func (b *storeBundle) file(key string) string { return filepath.Join(b.dir, "objects", key[:2], key) }

// old sets an object's file time so far back that no request can still be writing the
// object.
func (b *storeBundle) old(key string) string {
	b.t.Helper()
	long := time.Now().Add(-3 * time.Hour)
	if err := os.Chtimes(b.file(key), long, long); err != nil {
		b.t.Fatal(err)
	}
	return key
}

// collect deletes a blob by running a review.
func (b *storeBundle) collect(d oci.Digest) {
	b.t.Helper()
	b.exec(`WITH d AS (DELETE FROM blobs WHERE digest = $1 RETURNING storage_key)
		INSERT INTO gc_doomed_objects (storage_key) SELECT storage_key FROM d`, d.Bytes())
}

// sweep deletes all objects that are due for deletion.
func (b *storeBundle) sweep() {
	b.t.Helper()
	list, err := b.gc.ClaimDoomed(b.t.Context(), 1000, time.Minute)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, d := range list {
		if d.OfUpload {
			err = b.store.DeleteUpload(b.t.Context(), d.StorageKey, d.Keep)
		} else {
			err = b.store.Delete(b.t.Context(), []string{d.StorageKey})
		}
		if err != nil {
			b.t.Fatal(err)
		}
	}
	if err := b.gc.SettleDoomed(b.t.Context(), list); err != nil {
		b.t.Fatal(err)
	}
}

// check runs a check and returns its findings, as "problem key" in order.
func (b *storeBundle) check(o gc.CheckOptions) ([]string, gc.CheckReport, error) {
	b.t.Helper()
	o.Catalog = b.catalog
	if o.Store == nil {
		o.Store = b.store
	}
	var found []string
	o.Found = func(f gc.Finding) {
		text := string(f.Problem) + " " + f.Key
		if f.Repaired {
			text += " repaired"
		}
		found = append(found, text)
	}
	report, err := gc.Check(b.t.Context(), o)
	slices.Sort(found)
	return found, report, err
}

// finds runs a check, which must succeed and find exactly what is wanted.
func (b *storeBundle) finds(o gc.CheckOptions, want ...string) gc.CheckReport {
	b.t.Helper()
	found, report, err := b.check(o)
	slices.Sort(want)
	if err != nil || !slices.Equal(found, want) {
		b.t.Fatalf("found, %v:\n%s\nwant:\n%s", err, strings.Join(found, "\n"), strings.Join(want, "\n"))
	}
	return report
}

func TestCheckFindsExactlyWhatIsWrong(t *testing.T) {
	t.Parallel()
	b := setupStore(t)
	ctx := t.Context()
	for i := range 30 {
		b.push(fmt.Sprint("whole ", i))
	}
	b.upload()
	b.old(b.stored()[0])
	b.doom(3)
	report := b.finds(gc.CheckOptions{Deep: true})
	if report.Blobs != 30 || report.Objects != 34 || report.Hashed != 30 || report.Remaining() {
		t.Errorf("%+v", report)
	}

	missing, short, flipped := b.push("missing"), b.push("shortened"), b.push("flipped")
	stray := b.old(b.object(10))
	young := b.object(10)
	if err := errors.Join(os.Remove(b.file(missing.Key)), os.Truncate(b.file(short.Key), 4),
		os.WriteFile(b.file(flipped.Key), []byte("flopped"), 0o600)); err != nil {
		t.Fatal(err)
	}
	shared := b.push("shared")
	b.exec("INSERT INTO gc_doomed_objects (storage_key) VALUES ($1)", shared.Key)
	shallow := []string{"missing " + missing.Key, "wrong-size " + short.Key, "unowned " + stray, "shared " + shared.Key}
	report = b.finds(gc.CheckOptions{}, shallow...)
	if report.Young != 1 || !report.Remaining() || report.HashedBytes != 0 {
		t.Errorf("%+v", report)
	}
	b.finds(gc.CheckOptions{Deep: true}, append(shallow, "damaged "+flipped.Key)...)
	if n := b.doomed(); n != 4 {
		t.Errorf("%d rows of doomed objects: a check without repair changes nothing", n)
	}

	b.finds(gc.CheckOptions{Deep: true, Repair: true},
		"missing "+missing.Key+" repaired", "wrong-size "+short.Key+" repaired", "damaged "+flipped.Key+" repaired",
		"unowned "+stray+" repaired", "shared "+shared.Key)
	b.exec("DELETE FROM gc_doomed_objects WHERE storage_key = $1", shared.Key)
	for _, o := range []catalog.Owner{missing, short, flipped} {
		if _, err := b.catalog.Blob(ctx, "team/app", o.Digest); oci.CodeOf(err) != oci.BlobUnknown {
			t.Errorf("%s: %v", o.Digest, err)
		}
	}
	// A marked blob stays marked without another push, also after a deep check and a second
	// one.
	for _, deep := range []bool{false, true} {
		report = b.finds(gc.CheckOptions{Repair: true, Deep: deep}, "lost "+missing.Key, "lost "+short.Key, "lost "+flipped.Key)
		if !report.Remaining() {
			t.Error("lost blobs are nothing that is left to be done")
		}
	}
	b.push("missing")
	b.push("shortened")
	b.push("flipped")
	b.finds(gc.CheckOptions{Deep: true})
	// The sweeper deletes recorded objects at once, and objects without an owner a day
	// later.
	b.sweep()
	if !slices.Contains(b.stored(), stray) {
		t.Error("an object that nothing owned is deleted at once")
	}
	b.exec("UPDATE gc_doomed_objects SET delete_after = now()")
	b.sweep()
	left := b.stored()
	for _, key := range []string{stray, short.Key, flipped.Key} {
		if slices.Contains(left, key) {
			t.Errorf("%s is still stored", key)
		}
	}
	if !slices.Contains(left, young) {
		t.Error("a young object was deleted")
	}
	b.finds(gc.CheckOptions{Deep: true})
}

// A lost object that comes back, with a volume, is served again; one that comes back damaged
// isn't, even if the check isn't a deep one.
func TestCheckFindsLostBlobsAgain(t *testing.T) {
	t.Parallel()
	b := setupStore(t)
	back, damaged := b.push("back"), b.push("damaged")
	for _, o := range []catalog.Owner{back, damaged} {
		if err := os.Rename(b.file(o.Key), b.file(o.Key)+".away"); err != nil {
			t.Fatal(err)
		}
	}
	b.finds(gc.CheckOptions{Repair: true}, "missing "+back.Key+" repaired", "missing "+damaged.Key+" repaired")
	if err := errors.Join(os.Rename(b.file(back.Key)+".away", b.file(back.Key)),
		os.WriteFile(b.file(damaged.Key), []byte("DAMAGED"), 0o600)); err != nil {
		t.Fatal(err)
	}
	b.finds(gc.CheckOptions{}, "recovered "+back.Key, "lost "+damaged.Key)
	b.finds(gc.CheckOptions{Repair: true}, "recovered "+back.Key+" repaired", "lost "+damaged.Key)
	if _, err := b.catalog.Blob(t.Context(), "team/app", back.Digest); err != nil {
		t.Error(err)
	}
	b.finds(gc.CheckOptions{Repair: true}, "lost "+damaged.Key)
}

// Objects of other programs aren't reported; a blob may own such an object all the same, and
// is lost when the object is gone.
func TestCheckLeavesForeignObjectsAlone(t *testing.T) {
	t.Parallel()
	b := setupStore(t)
	here, gone := b.push("here"), b.push("gone")
	for name, o := range map[string]catalog.Owner{"docker/here/data": here, "docker/gone/data": gone, "!/data": b.push("early")} {
		b.exec("UPDATE blobs SET storage_key = $1 WHERE digest = $2", name, o.Digest.Bytes())
		file := filepath.Join(b.dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.Rename(b.file(o.Key), file)); err != nil {
			t.Fatal(err)
		}
	}
	stray := filepath.Join(b.dir, "docker/other/data")
	if err := errors.Join(os.MkdirAll(filepath.Dir(stray), 0o755), os.WriteFile(stray, nil, 0o600),
		os.Chtimes(stray, time.Unix(0, 0), time.Unix(0, 0))); err != nil {
		t.Fatal(err)
	}
	b.finds(gc.CheckOptions{Deep: true, Repair: true})
	if err := os.Remove(filepath.Join(b.dir, "docker/gone/data")); err != nil {
		t.Fatal(err)
	}
	b.finds(gc.CheckOptions{Deep: true, Repair: true}, "missing docker/gone/data repaired")
	b.push("gone")
	b.finds(gc.CheckOptions{Deep: true, Repair: true})
	if n := b.doomed(); n != 0 {
		t.Errorf("%d objects are doomed: what is foreign is not this registry's to delete", n)
	}
}

// hooked is a store that calls a function before a call, once for each key.
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
		// Like a store without open files: reading ends in the middle when the object is
		// deleted.
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

// after runs f after the check has read the rows of the part of key, and before it lists the
// part's objects.
func after(key string, f func()) func(prefix string) {
	return func(prefix string) {
		if strings.HasPrefix(key, prefix) {
			f()
		}
	}
}

// first calls f until it returns a key that belongs to the first part.
func first(f func() (key string)) func(prefix string) {
	return after("0", func() {
		for !strings.HasPrefix(f(), "0") {
		}
	})
}

// A check finds nothing, whatever changes at whatever moment.
func TestCheckIsNotFooledByWhatMoves(t *testing.T) {
	t.Parallel()
	tests := map[string]func(b *storeBundle) gc.CheckOptions{
		// The rows are read, then the objects are listed. In between:
		"a blob is deleted and swept": func(b *storeBundle) gc.CheckOptions {
			o := b.push("blob")
			return gc.CheckOptions{Store: hooked{Store: b.store, list: after(o.Key, func() { b.collect(o.Digest); b.sweep() })}}
		},
		"a blob is pushed": func(b *storeBundle) gc.CheckOptions {
			return gc.CheckOptions{Store: hooked{Store: b.store, list: first(func() string { return b.old(b.push(rand.Text()).Key) })}}
		},
		"an old upload is committed": func(b *storeBundle) gc.CheckOptions {
			u, key, err := b.begun(b.t.Context(), "blob")
			if err != nil {
				b.t.Fatal(err)
			}
			b.old(key)
			return gc.CheckOptions{Store: hooked{Store: b.store, list: after(key, func() {
				if err := b.catalog.CommitUpload(b.t.Context(), u, oci.Compute(oci.SHA256, []byte("blob")), key, false); err != nil {
					b.t.Error(err)
				}
			})}}
		},
		"a new upload is cancelled": func(b *storeBundle) gc.CheckOptions {
			return gc.CheckOptions{Store: hooked{Store: b.store, list: first(func() string {
				u := b.upload()
				b.old(u.StorageKey + "-0")
				if err := b.catalog.CancelUpload(b.t.Context(), "team/app", u.ID); err != nil {
					b.t.Error(err)
				}
				return u.StorageKey
			})}}
		},
		// The objects are listed, then an owner is looked for, then the object.
		"an object without an owner is deleted by who wrote it": func(b *storeBundle) gc.CheckOptions {
			key := b.old(b.object(5))
			return gc.CheckOptions{Store: hooked{Store: b.store, stat: once(func(string) {
				if err := b.store.Delete(b.t.Context(), []string{key}); err != nil {
					b.t.Error(err)
				}
			})}}
		},
		"a blob without a row in the first look has one in the second": func(b *storeBundle) gc.CheckOptions {
			return gc.CheckOptions{Store: hooked{Store: b.store,
				list: first(func() string { return b.old(b.push(rand.Text()).Key) }),
				stat: once(func(string) { b.t.Error("the object of a blob was taken for one without an owner") }),
			}}
		},
		// The check has seen that an object is missing, then it looks at the row again.
		"a blob whose object is missing is deleted": func(b *storeBundle) gc.CheckOptions {
			o := b.push("blob")
			return gc.CheckOptions{Store: hooked{Store: b.store, list: after(o.Key, func() {
				if err := b.store.Delete(b.t.Context(), []string{o.Key}); err != nil {
					b.t.Error(err)
				}
			}), stat: once(func(string) { b.collect(o.Digest) })}}
		},
		"a lost blob is pushed again": func(b *storeBundle) gc.CheckOptions {
			o := b.push("blob")
			if _, err := b.catalog.MarkLost(b.t.Context(), []catalog.Owner{o}); err != nil {
				b.t.Fatal(err)
			}
			if err := b.store.Delete(b.t.Context(), []string{o.Key}); err != nil {
				b.t.Fatal(err)
			}
			return gc.CheckOptions{Store: hooked{Store: b.store, stat: once(func(string) { b.push("blob") })}}
		},
		// While the check reads a blob:
		"a blob is deleted before it is read": func(b *storeBundle) gc.CheckOptions {
			o := b.push("blob")
			return gc.CheckOptions{Deep: true, Store: hooked{Store: b.store, open: once(func(string) { b.collect(o.Digest); b.sweep() })}}
		},
		"a blob is deleted while it is read": func(b *storeBundle) gc.CheckOptions {
			o := b.push("some blob")
			return gc.CheckOptions{Deep: true, Store: hooked{Store: b.store, read: func(key string) bool {
				if key == o.Key {
					b.collect(o.Digest)
					b.sweep()
				}
				return key == o.Key
			}}}
		},
		// A multipart upload is listed, then its owner is looked for.
		"multipart uploads have owners": func(b *storeBundle) gc.CheckOptions {
			long := time.Now().Add(-3 * time.Hour)
			u, v := b.upload(), b.upload()
			if err := b.catalog.CancelUpload(b.t.Context(), "team/app", v.ID); err != nil {
				b.t.Fatal(err)
			}
			return gc.CheckOptions{Store: hooked{Store: b.store, multiparts: []blob.Unfinished{
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

func TestCheckDoomsMultipartUploads(t *testing.T) {
	t.Parallel()
	b := setupStore(t)
	o := b.push("blob")
	base, _ := blob.UploadOf(o.Key)
	stray := blob.NewBase()
	long := time.Now().Add(-3 * time.Hour)
	store := hooked{Store: b.store, multiparts: []blob.Unfinished{
		{Base: base, Began: long}, {Base: stray, Began: long}, {Base: stray, Began: long},
	}}
	b.finds(gc.CheckOptions{Store: store}, "unowned-upload "+base, "unowned-upload "+stray)
	b.finds(gc.CheckOptions{Store: store, Repair: true}, "unowned-upload "+base+" repaired", "unowned-upload "+stray+" repaired")
	b.finds(gc.CheckOptions{Store: store, Repair: true})
	b.exec("UPDATE gc_doomed_objects SET delete_after = now()")
	b.sweep() // must spare the blob of the same upload
	b.finds(gc.CheckOptions{Deep: true})
}

// If the store can't be read, its objects aren't reported as wrong.
func TestCheckChangesNothingWhenTheStoreFails(t *testing.T) {
	t.Parallel()
	b := setupStore(t)
	o := b.push("a blob")
	b.finds(gc.CheckOptions{Deep: true, Repair: true, Store: hooked{Store: b.store, read: func(string) bool { return true }}}, "unreadable "+o.Key)
	if err := os.RemoveAll(filepath.Join(b.dir, "objects")); err != nil {
		t.Fatal(err)
	}
	if found, _, err := b.check(gc.CheckOptions{Repair: true}); err == nil || len(found) != 0 {
		t.Errorf("found %q, %v", found, err)
	}
	now, _, err := b.catalog.BlobOwner(t.Context(), o.Digest)
	if err != nil || now.Lost {
		t.Errorf("%+v, %v", now, err)
	}
}

// A repair with another registry's database, or without the store's volume, is refused; it
// still reports its findings.
func TestCheckRefusesToRepairEverything(t *testing.T) {
	t.Parallel()
	const n = 120
	t.Run("another database", func(t *testing.T) {
		t.Parallel()
		b, other := setupStore(t), setupStore(t)
		for i := range n {
			b.old(b.push(fmt.Sprint(i)).Key)
		}
		found, report, err := other.check(gc.CheckOptions{Repair: true, Store: b.store})
		if !errors.Is(err, gc.ErrImplausible) || len(found) != n || report.Problems[gc.Unowned].Repaired != 0 || other.doomed() != 0 {
			t.Errorf("%v, %d found, %d doomed", err, len(found), other.doomed())
		}
		if _, _, err := other.check(gc.CheckOptions{Repair: true, Force: true, Store: b.store}); err != nil || other.doomed() != n {
			t.Errorf("forced: %v, %d doomed", err, other.doomed())
		}
	})
	t.Run("another store", func(t *testing.T) {
		t.Parallel()
		b, other := setupStore(t), setupStore(t)
		for i := range n {
			b.push(fmt.Sprint(i))
		}
		lost := func() (n int) {
			if err := b.db.Pool.QueryRow(t.Context(), "SELECT count(lost_at) FROM blobs").Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n
		}
		found, _, err := b.check(gc.CheckOptions{Repair: true, Store: other.store})
		if !errors.Is(err, gc.ErrImplausible) || len(found) != n || lost() != 0 {
			t.Errorf("%v, %d found, %d marked", err, len(found), lost())
		}
		if _, _, err := b.check(gc.CheckOptions{Repair: true, Force: true, Store: other.store}); err != nil || lost() != n {
			t.Errorf("forced: %v, %d marked", err, lost())
		}
		// With the right store everything is as before.
		if _, report, err := b.check(gc.CheckOptions{Repair: true}); err != nil || lost() != 0 || report.Remaining() {
			t.Errorf("%v, %d marked, %+v", err, lost(), report)
		}
	})
}

// Findings name repositories that have the blob, and the progress ends at 1.
func TestCheckTells(t *testing.T) {
	t.Parallel()
	b := setupStore(t)
	o := b.push("layer")
	if err := os.Remove(b.file(o.Key)); err != nil {
		t.Fatal(err)
	}
	var found []gc.Finding
	var last gc.CheckProgress
	_, err := gc.Check(t.Context(), gc.CheckOptions{Catalog: b.catalog, Store: b.store,
		Found: func(f gc.Finding) { found = append(found, f) }, Progress: func(p gc.CheckProgress) { last = p }})
	if err != nil || len(found) != 1 || found[0].Digest != o.Digest || found[0].Size != 5 || !slices.Equal(found[0].Repositories, []string{"team/app"}) {
		t.Errorf("%+v, %v", found, err)
	}
	if last.Share != 1 || last.Blobs != 1 || last.Findings != 1 {
		t.Errorf("%+v at the end", last)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := gc.Check(ctx, gc.CheckOptions{Catalog: b.catalog, Store: b.store}); !errors.Is(err, context.Canceled) {
		t.Errorf("a check that was stopped: %v", err)
	}
}

// Clients push, cancel and push again while others delete and a sweeper sweeps, and all
// objects look old; checks with repair find nothing all the while.
func TestCheckBesideARegistry(t *testing.T) {
	t.Parallel()
	b := setupStore(t)
	store := aged{b.store}
	b.start(b.sweeper(nil).Run)
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
		found, report, err := b.check(gc.CheckOptions{Store: store, Deep: checks%2 == 0, Repair: true, Parallel: 2})
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
	b.finds(gc.CheckOptions{Store: store, Deep: true})
}

// live makes one client request or one step of garbage collection.
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
		return b.catalog.CancelUpload(ctx, "team/app", u.ID)
	}
	u, key, err := b.begun(ctx, content)
	if err != nil {
		return err
	}
	return b.catalog.CommitUpload(ctx, u, d, key, r.IntN(2) == 0)
}

// aged is a store whose objects all look old, so that their age doesn't protect them.
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

func TestCheckRemaining(t *testing.T) {
	t.Parallel()
	for p, want := range map[gc.Problem][2]bool{ // found, repaired
		gc.Shared: {true, true}, gc.Missing: {true, true}, gc.WrongSize: {true, true}, gc.Damaged: {true, true},
		gc.Unreadable: {true, true}, gc.Lost: {true, true}, gc.Recovered: {true, false},
		gc.Unowned: {true, false}, gc.UnownedUpload: {true, false},
	} {
		for i, repaired := range []int64{0, 1} {
			r := gc.CheckReport{Problems: map[gc.Problem]*gc.Tally{p: {Count: 1, Repaired: repaired}}}
			if r.Remaining() != want[i] {
				t.Errorf("%s, %d repaired: remaining is %v", p, repaired, r.Remaining())
			}
		}
		if !slices.Contains(gc.Problems, p) {
			t.Errorf("%s isn't listed", p)
		}
	}
	if r := (gc.CheckReport{}); r.Remaining() || len(maps.Collect(maps.All(r.Problems))) != 0 {
		t.Error("something remains of nothing")
	}
}
