package storeid_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/blob/blobtest"
	"github.com/purser-registry/purser/internal/blob/s3"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/storeid"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

// bundle is a database with its catalog, which a test combines with several blob stores.
type bundle struct {
	t       *testing.T
	db      *db.DB
	catalog *catalog.Catalog
}

func setup(t *testing.T) *bundle {
	t.Helper()
	d := dbtest.New(t)
	return &bundle{t, d, catalog.New(catalog.Options{DB: d, CacheOff: true, Log: slog.New(slog.DiscardHandler)})}
}

func dir(t *testing.T, path string) *blob.Dir {
	t.Helper()
	d, err := blob.OpenDir(blob.DirOptions{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// on returns a Store that wraps the blob store `store` and belongs to the database of b; it
// refuses `store` if that has another identity than this database.
func (b *bundle) on(store blob.Store, place string) *storeid.Store {
	b.t.Helper()
	s, err := storeid.New(storeid.Options{DB: b.db, Catalog: b.catalog, Store: store, Place: place, Local: true,
		Lease: time.Second, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

// push stores content as an object in store, and makes it a blob of the database.
func (b *bundle) push(store blob.Store, content string) (oci.Digest, string) {
	b.t.Helper()
	list, err := b.catalog.StartUploads(b.t.Context(), catalog.StartOptions{N: 1})
	if err != nil {
		b.t.Fatal(err)
	}
	u, key := list[0], object(b.t, store, list[0].StorageKey, content)
	u.Repository, u.Size = "team/app", int64(len(content))
	d := oci.Compute(oci.SHA256, []byte(content))
	if err := b.catalog.CommitUpload(b.t.Context(), u, d, key, false); err != nil {
		b.t.Fatal(err)
	}
	return d, key
}

// object stores `content` in the store as an object whose key begins with `base`, an
// upload's key prefix, and returns the key.
func object(t *testing.T, store blob.Store, base, content string) string {
	t.Helper()
	key, err := tryObject(t.Context(), store, base, content)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func tryObject(ctx context.Context, store blob.Store, base, content string) (string, error) {
	var next int64
	w, err := store.Resume(ctx, base, nil, 0, func(context.Context) (int64, error) { return 0, nil },
		func(_ context.Context, n int) (int64, error) { next += int64(n); return next - int64(n), nil })
	if err != nil {
		return "", err
	}
	defer w.Close() //nolint:errcheck // Finish has said whether all is well
	if _, err := w.Write([]byte(content)); err != nil {
		return "", err
	}
	return w.Finish(ctx)
}

// known returns what the database has stored about its store.
func (b *bundle) known() storeid.Known {
	b.t.Helper()
	k, err := storeid.Read(b.t.Context(), b.db)
	if err != nil {
		b.t.Fatal(err)
	}
	return k
}

func identity(t *testing.T, s blob.Store) string {
	t.Helper()
	id, err := s.Identity(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// refused fails the test unless err wraps ErrWrongStore and its text contains all of the
// words.
func refused(t *testing.T, err error, words ...string) {
	t.Helper()
	if !errors.Is(err, blob.ErrWrongStore) {
		t.Fatalf("error %v, want a refusal", err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%v\nsays nothing of %q", err, w)
		}
	}
}

// backends runs a test once with a directory and once with S3 as the blob store.
func backends(t *testing.T, test func(t *testing.T, open func(t *testing.T) blob.Store)) {
	t.Helper()
	for name, open := range map[string]func(t *testing.T) blob.Store{
		"dir": func(t *testing.T) blob.Store { return dir(t, t.TempDir()) },
		"s3": func(t *testing.T) blob.Store {
			s, err := s3.New(blobtest.S3Server(t))
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, open)
		})
	}
}

// Several processes start at once on a new database and a new store. All must succeed, and
// database and store must have the same identity. A process that starts later on the same
// database and store must succeed; with another store, or with another database on this
// store, it must be refused.
func TestFirstStart(t *testing.T) {
	t.Parallel()
	backends(t, func(t *testing.T, open func(t *testing.T) blob.Store) {
		b, store := setup(t), open(t)
		var wg sync.WaitGroup
		for range 6 {
			wg.Go(func() {
				if err := b.on(store, "here").Establish(t.Context()); err != nil {
					t.Errorf("a first start: %v", err)
				}
			})
		}
		wg.Wait()
		if k := b.known(); k.ID == "" || !k.Confirmed || k.Place != "here" || identity(t, store) != k.ID {
			t.Fatalf("the database knows %+v, the store %s", k, identity(t, store))
		}
		if err := b.on(store, "moved").Establish(t.Context()); err != nil || b.known().Place != "moved" {
			t.Errorf("a later start: %v; the database knows %+v", err, b.known())
		}
		refused(t, b.on(open(t), "elsewhere").Establish(t.Context()), b.known().ID, "elsewhere", "moved", "no identity", "purser store adopt")
		other := setup(t)
		refused(t, other.on(store, "here").Establish(t.Context()), b.known().ID, "here", "adopt --from "+b.known().ID)
		if k := other.known(); k.ID != "" {
			t.Errorf("the refused database has taken %+v", k)
		}
	})
}

// overtaken is a store whose first Identity lets `other` run first. So what `other` does comes
// after its caller has read the database.
type overtaken struct {
	blob.Store
	once  *sync.Once
	other func()
}

func (o overtaken) Identity(ctx context.Context) (string, error) {
	o.once.Do(o.other)
	return o.Store.Identity(ctx)
}

// At a first start, a process reads the database, which has no identity yet. Before it reads
// the store, another process gives both an identity. The first process must succeed too.
func TestFirstStartIsOvertaken(t *testing.T) {
	t.Parallel()
	b, store := setup(t), dir(t, t.TempDir())
	ran := false
	o := overtaken{store, new(sync.Once), func() {
		ran = true
		if err := b.on(store, "here").Establish(t.Context()); err != nil {
			t.Error(err)
		}
	}}
	if err := b.on(o, "here").Establish(t.Context()); err != nil || !ran {
		t.Errorf("overtaken by another first start (%v): %v", ran, err)
	}
	if k := b.known(); k.ID == "" || k.ID != identity(t, store) {
		t.Errorf("the database knows %+v, the store %s", k, identity(t, store))
	}
}

// Two replicas of one database start at the same time on two different stores, since their
// volume isn't shared. The test expects that one of them is refused.
func TestFirstStartOnTwoStores(t *testing.T) {
	t.Parallel()
	b := setup(t)
	stores := []*blob.Dir{dir(t, t.TempDir()), dir(t, t.TempDir())}
	errs := make([]error, 2)
	var wg sync.WaitGroup
	for i, store := range stores {
		wg.Go(func() { errs[i] = b.on(store, fmt.Sprint("store ", i)).Establish(t.Context()) })
	}
	wg.Wait()
	if (errs[0] == nil) == (errs[1] == nil) {
		t.Fatalf("errors %v, want one", errs)
	}
	refused(t, errors.Join(errs...), "has no identity", b.known().ID)
}

// Several databases' registries start at the same time on one empty store. The test expects
// that only one succeeds.
func TestTwoDatabasesOnOneStore(t *testing.T) {
	t.Parallel()
	backends(t, func(t *testing.T, open func(t *testing.T) blob.Store) {
		store := open(t)
		errs := make([]error, 4)
		var wg sync.WaitGroup
		for i := range errs {
			b := setup(t)
			wg.Go(func() { errs[i] = b.on(store, "here").Establish(t.Context()) })
		}
		wg.Wait()
		won := 0
		for _, err := range errs {
			if err == nil {
				won++
			} else {
				refused(t, err, identity(t, store))
			}
		}
		if won != 1 {
			t.Errorf("%d databases have the store: %v", won, errs)
		}
	})
}

// failing is a store whose SetIdentity always returns an error. If `after` is true,
// SetIdentity first writes the identity to the store; otherwise it writes nothing.
type failing struct {
	blob.Store
	after bool
}

func (f failing) SetIdentity(ctx context.Context, id string, replace bool) error {
	if f.after {
		if err := f.Store.SetIdentity(ctx, id, replace); err != nil {
			return err
		}
	}
	return errors.New("the process died here")
}

// The first start of a registry fails between two of its steps. The test expects that the next
// start completes it.
func TestFirstStartIsCompleted(t *testing.T) {
	t.Parallel()
	for _, after := range []bool{false, true} {
		t.Run(fmt.Sprintf("after the write %v", after), func(t *testing.T) {
			t.Parallel()
			b, store := setup(t), dir(t, t.TempDir())
			if err := b.on(failing{store, after}, "here").Establish(t.Context()); err == nil {
				t.Fatal("it succeeded")
			}
			chosen := b.known()
			if chosen.ID == "" || chosen.Confirmed {
				t.Fatalf("the database knows %+v", chosen)
			}
			if err := b.on(store, "here").Establish(t.Context()); err != nil {
				t.Fatal(err)
			}
			if k := b.known(); !k.Confirmed || k.ID != identity(t, store) || after != (k.ID == chosen.ID) {
				t.Errorf("the database knows %+v, first it chose %s; the store has %s", k, chosen.ID, identity(t, store))
			}
		})
	}
}

// Neither a database with blobs nor its store has an identity. Both must get one. A start with
// this database and another store must be refused, and so must a start with a new database and a
// store that has objects.
func TestNeitherHasIdentity(t *testing.T) {
	t.Parallel()
	backends(t, func(t *testing.T, open func(t *testing.T) blob.Store) {
		b, store := setup(t), open(t)
		var keys []string
		for i := range 6 {
			_, key := b.push(store, fmt.Sprint("content ", i))
			keys = append(keys, key)
		}
		refused(t, b.on(open(t), "empty").Establish(t.Context()), "empty", "of 6 blobs that the database has, the store has 0", "adopt --force")
		other := setup(t)
		refused(t, other.on(store, "here").Establish(t.Context()), "here", "6 of 6 objects", "adopt --force")
		if err := store.Delete(t.Context(), keys[:3]); err != nil { // lost ones don't make it another store
			t.Fatal(err)
		}
		if err := b.on(store, "here").Establish(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// closedTo is a store that may not read some of its objects.
type closedTo struct {
	blob.Store
	keys []string
}

func (c closedTo) Stat(ctx context.Context, key string) (blob.Object, error) {
	if slices.Contains(c.keys, key) {
		return blob.Object{}, &fs.PathError{Op: "stat", Path: key, Err: syscall.EACCES}
	}
	return c.Store.Stat(ctx, key)
}

// TestSampleTellsWhatItMayNotRead: objects that can't be read count neither as found nor as missing. If
// they decide whether the store is the database's, their error says so, and not that the store is another's.
func TestSampleTellsWhatItMayNotRead(t *testing.T) {
	t.Parallel()
	b, store := setup(t), dir(t, t.TempDir())
	var keys []string
	for i := range 4 {
		_, key := b.push(store, fmt.Sprint(i))
		keys = append(keys, key)
	}
	s := b.on(closedTo{store, keys[:3]}, "a")
	state, err := s.Show(t.Context())
	if err != nil || state.Sampled != 4 || state.Found != 1 || state.Unreadable != 3 || !errors.Is(state.Failure(), fs.ErrPermission) {
		t.Errorf("%+v, %v", state, err)
	}
	if err := s.Establish(t.Context()); !errors.Is(err, fs.ErrPermission) || errors.Is(err, blob.ErrWrongStore) {
		t.Errorf("with three of four objects closed: %v", err)
	}
	if err := b.on(closedTo{store, keys[:2]}, "a").Establish(t.Context()); err != nil {
		t.Errorf("with half of the objects closed: %v", err)
	}
}

// Adopt must accept a store that has the database's blobs. It must accept an empty store,
// or a store whose identity is damaged, only with the option Force, and another database's
// store only with the option From.
func TestAdopt(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	b, store := setup(t), dir(t, t.TempDir())
	_, key := b.push(store, "content")
	if err := b.on(store, "here").Establish(ctx); err != nil {
		t.Fatal(err)
	}
	id := b.known().ID
	if a, err := b.on(store, "here").Adopt(ctx, storeid.AdoptOptions{}); err != nil || a.Changed {
		t.Errorf("adopting its own: %+v, %v", a, err)
	}
	// The store restored without its identity.
	restored := dir(t, t.TempDir())
	object(t, restored, strings.Split(key, "-")[0], "content")
	refused(t, b.on(restored, "restored").Establish(ctx), id)
	begun := 0
	a, err := b.on(restored, "restored").Adopt(ctx, storeid.AdoptOptions{Begin: func(storeid.Adoption) error { begun++; return nil }})
	if err != nil || !a.Changed || a.Identity != id || a.Found != 1 || identity(t, restored) != id || begun != 1 {
		t.Errorf("adopting the restored store: %+v, %v", a, err)
	}
	if err := b.on(restored, "restored").Establish(ctx); err != nil {
		t.Error(err)
	}
	// An empty one.
	empty := dir(t, t.TempDir())
	_, err = b.on(empty, "empty").Adopt(ctx, storeid.AdoptOptions{})
	refused(t, err, "of 1 blobs", "--force")
	if identity(t, empty) != "" {
		t.Error("a refused adoption has written")
	}
	if _, err := b.on(empty, "empty").Adopt(ctx, storeid.AdoptOptions{Force: true}); err != nil {
		t.Error(err)
	}
	// Another database's, which stops writing.
	other := setup(t)
	theirs := other.on(restored, "restored")
	_, err = theirs.Adopt(ctx, storeid.AdoptOptions{Force: true})
	refused(t, err, id, "--from "+id)
	if a, err := theirs.Adopt(ctx, storeid.AdoptOptions{From: id, Force: true}); err != nil || a.Was != id || a.Identity == id {
		t.Errorf("taking a store away: %+v, %v", a, err)
	}
	ours := b.on(restored, "restored")
	if _, err := tryObject(ctx, ours, blob.NewBase(), "x"); !errors.Is(err, blob.ErrWrongStore) || !ours.Wrong() {
		t.Errorf("writing to a store that was taken away: %v", err)
	}
	// A damaged identity.
	if err := os.WriteFile(filepath.Join(restored.Path(), "objects", blob.IdentityKey), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := theirs.Establish(ctx); !errors.Is(err, blob.ErrDamagedIdentity) {
		t.Errorf("a damaged identity: %v", err)
	}
	if _, err := theirs.Adopt(ctx, storeid.AdoptOptions{Force: true}); err != nil || identity(t, restored) != other.known().ID {
		t.Errorf("adopting a damaged identity: %v", err)
	}
	// A copy of both database and store.
	if a, err := theirs.Adopt(ctx, storeid.AdoptOptions{New: true}); err != nil || a.Identity == a.Was || identity(t, restored) != other.known().ID {
		t.Errorf("a new identity: %+v, %v", a, err)
	}
}

// While the blob store has another identity than the database, Store must refuse writes and
// deletes, and must not report an object as missing.
func TestGuard(t *testing.T) {
	t.Parallel()
	backends(t, func(t *testing.T, open func(t *testing.T) blob.Store) {
		ctx := t.Context()
		b, store := setup(t), open(t)
		s := b.on(store, "here")
		if _, err := tryObject(ctx, s, blob.NewBase(), "x"); err == nil {
			t.Error("written before it was established")
		}
		if err := s.Establish(ctx); err != nil {
			t.Fatal(err)
		}
		base := blob.NewBase()
		key := object(t, s, base, "content")
		missing := blob.NewBase() + "-0"
		if _, err := s.Stat(ctx, missing); !errors.Is(err, blob.ErrNotFound) {
			t.Errorf("stat of nothing: %v", err)
		}
		if err := errors.Join(s.Delete(ctx, []string{missing}), s.DeleteUpload(ctx, blob.NewBase(), ""), s.Check(ctx)); err != nil {
			t.Error(err)
		}
		if err := store.SetIdentity(ctx, uuid.NewString(), true); err != nil { // its place is taken
			t.Fatal(err)
		}
		_, statErr := s.Stat(ctx, missing)
		_, openErr := s.Open(ctx, missing, 0, -1)
		_, writeErr := tryObject(ctx, s, blob.NewBase(), "x")
		for name, err := range map[string]error{
			"Stat": statErr, "Open": openErr, "Resume": writeErr, "Delete": s.Delete(ctx, []string{key}),
			"DeleteUpload": s.DeleteUpload(ctx, base, ""), "Check": s.Check(ctx),
		} {
			if !errors.Is(err, blob.ErrWrongStore) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if _, err := store.Stat(ctx, key); err != nil || !s.Wrong() {
			t.Errorf("the object: %v; wrong: %v", err, s.Wrong())
		}
		if err := store.SetIdentity(ctx, b.known().ID, true); err != nil {
			t.Fatal(err)
		}
		if err := s.Check(ctx); err != nil || s.Wrong() {
			t.Errorf("the store is back: %v, wrong: %v", err, s.Wrong())
		}
		object(t, s, blob.NewBase(), "x")
	})
}

// The directory is replaced by a wrong store, and later by the right store again, while nobody
// calls the Store's methods. Each time, the next call of Wrong must report the change.
func TestWrongLooks(t *testing.T) {
	t.Parallel()
	b, ctx := setup(t), t.Context()
	store := dir(t, t.TempDir())
	s := b.on(store, "here")
	if err := s.Establish(ctx); err != nil || s.Wrong() {
		t.Fatalf("%v, wrong: %v", err, s.Wrong())
	}
	for _, wrong := range []bool{true, false} {
		id := b.known().ID
		if wrong {
			id = uuid.NewString()
		}
		if err := store.SetIdentity(ctx, id, true); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(time.Minute); s.Wrong() != wrong; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("never: the store is wrong: %v", wrong)
			}
		}
	}
}

// A volume is unmounted while an upload is written to it. The write must return an error.
func TestGuardLooksAfterTheWrite(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	b := setup(t)
	store := dir(t, t.TempDir())
	s := b.on(store, "here")
	if err := s.Establish(ctx); err != nil {
		t.Fatal(err)
	}
	w, err := s.Resume(ctx, blob.NewBase(), nil, 0, func(context.Context) (int64, error) { return 0, nil },
		func(_ context.Context, n int) (int64, error) { return 0, nil })
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close() //nolint:errcheck // it fails
	if _, err := w.Write([]byte("content")); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(store.Path(), "objects", blob.IdentityKey)); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Finish(ctx); !errors.Is(err, blob.ErrWrongStore) {
		t.Errorf("finished in a store that isn't the registry's: %v", err)
	}
}
