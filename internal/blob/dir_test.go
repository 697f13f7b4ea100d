package blob_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/blob/blobtest"
)

func openDir(t testing.TB, path string) *blob.Dir {
	t.Helper()
	d, err := blob.OpenDir(blob.DirOptions{Path: path, LockWait: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// keysIn lists the files of an upload.
func keysIn(t testing.TB, path, base string) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(path, "objects", base[:2]))
	if err != nil {
		t.Fatal(err)
	}
	keys := []string{}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), base) {
			keys = append(keys, e.Name())
		}
	}
	slices.Sort(keys)
	return keys
}

// TestDirSuite isn't parallel: blobtest.Run measures memory.
func TestDirSuite(t *testing.T) {
	path := t.TempDir()
	blobtest.Run(t, blobtest.Backend{
		Open:  func(t testing.TB) blob.Store { return openDir(t, path) },
		Keys:  func(t testing.TB, base string) []string { return keysIn(t, path, base) },
		Part:  512 << 10,
		Sizes: []int{0, 1, 10 << 10, 512<<10 - 1, 512 << 10, 2 << 20},
	})
}

// begin opens a store with the given LockWait, and begins an upload in it, of which a first
// request saves the bytes "acknowledged".
func begin(t *testing.T, wait time.Duration) (d *blob.Dir, path string, u *blobtest.Upload) {
	t.Helper()
	path = t.TempDir()
	d, err := blob.OpenDir(blob.DirOptions{Path: path, LockWait: wait})
	if err != nil {
		t.Fatal(err)
	}
	u = blobtest.NewUpload()
	u.Append(t, d, []byte("acknowledged"))
	return d, path, u
}

// objectPath returns the file of a key.
func objectPath(path, key string) string { return filepath.Join(path, "objects", key[:2], key) }

func TestDirBusy(t *testing.T) {
	t.Parallel()
	d, _, u := begin(t, time.Hour)
	holder := u.Begin(t, d)
	before := u.State()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	a, err := u.Attempt(ctx, d)
	if !errors.Is(err, blob.ErrBusy) || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("resuming an upload that another request holds: %v", err)
	}
	if a.Claims != 0 || string(u.State()) != string(before) {
		t.Fatalf("a busy request claimed %d times, state %s", a.Claims, u.State())
	}
	holder.MustWrite(t, []byte(" and more"))
	holder.MustFinish(t, d)
}

func TestDirWaitsForLock(t *testing.T) {
	t.Parallel()
	d, path, u := begin(t, time.Hour)
	holder, err := u.Attempt(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	closed := make(chan error, 1)
	time.AfterFunc(20*time.Millisecond, func() { closed <- holder.Close() })
	key := u.Complete(t, d, []byte(" and more"))
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
	if keys := keysIn(t, path, u.Base); !slices.Equal(keys, []string{key}) {
		t.Fatalf("objects: %q; the writer that waited should go on in the first", keys)
	}
}

func TestDirStalledWriterHoldsLock(t *testing.T) {
	t.Parallel()
	d, path, u := begin(t, time.Millisecond)
	stalled := u.Begin(t, d)
	a := u.Begin(t, d)
	a.MustWrite(t, []byte(", copied"))
	if keys := keysIn(t, path, u.Base); len(keys) != 2 {
		t.Fatalf("objects: %q; the writer without the lock should have its own", keys)
	}
	stalled.MustWrite(t, []byte("XXXXXXXXXXXXXXXXXXXX"))
	key := a.MustFinish(t, d)
	stalled.MustWrite(t, []byte("YYYYYYYYYYYYYYYYYYYY"))
	stalled.MustClose(t)
	blobtest.Equal(t, d, key, []byte("acknowledged, copied"))
	if keys := keysIn(t, path, u.Base); !slices.Equal(keys, []string{key}) {
		t.Fatalf("objects: %q, want only %s", keys, key)
	}
}

func TestDirLost(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(file string) error{
		"shorter": func(file string) error { return os.Truncate(file, 5) },
		"missing": os.Remove,
	} {
		d, path, u := begin(t, time.Millisecond)
		if err := lose(objectPath(path, u.Base+"-0")); err != nil {
			t.Fatal(err)
		}
		if _, err := u.Attempt(t.Context(), d); !errors.Is(err, blob.ErrLost) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDirNumberGivenTwice(t *testing.T) {
	t.Parallel()
	d, _, u := begin(t, time.Millisecond)
	w, err := d.Resume(t.Context(), u.Base, nil, 0,
		func(context.Context) (int64, error) { return 0, nil },
		func(context.Context, int) (int64, error) { return 0, nil })
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte("other")); !errors.Is(err, fs.ErrExist) {
		t.Fatalf("writing to a name that was used: %v", err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	blobtest.Equal(t, d, u.Base+"-0", []byte("acknowledged"))
}

// The store's directory isn't mounted. Then the store must report an error, and not that the
// objects are missing or were deleted.
func TestDirNotMounted(t *testing.T) {
	t.Parallel()
	d, path, u := begin(t, time.Millisecond)
	key := u.Complete(t, d, nil)
	away := path + "/away"
	if err := os.Rename(filepath.Join(path, "objects"), away); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Open(t.Context(), key, 0, -1); err == nil || errors.Is(err, blob.ErrNotFound) {
		t.Errorf("Open: %v", err)
	}
	if err := d.Delete(t.Context(), []string{key}); err == nil {
		t.Error("Delete reported success")
	}
	if err := d.DeleteUpload(t.Context(), u.Base, ""); err == nil {
		t.Error("DeleteUpload reported success")
	}
	if err := d.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "mounted") {
		t.Errorf("Check: %v", err)
	}
	if err := os.Rename(away, filepath.Join(path, "objects")); err != nil {
		t.Fatal(err)
	}
	blobtest.Equal(t, d, key, []byte("acknowledged"))
}

// Objects of another registry keep their paths.
func TestDirForeignKeys(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	const key = "docker/registry/v2/blobs/sha256/ab/abcd/data"
	file := filepath.Join(path, key)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("foreign"), 0o644); err != nil {
		t.Fatal(err)
	}
	d := openDir(t, path)
	blobtest.Equal(t, d, key, []byte("foreign"))
	for range 2 {
		if err := d.Delete(t.Context(), []string{key, "docker/registry/v2/blobs/sha256/no/no/data"}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := d.Open(t.Context(), key, 0, -1); !errors.Is(err, blob.ErrNotFound) {
		t.Fatalf("after Delete: %v", err)
	}
	for _, bad := range []string{"../secret", "/etc/passwd", "a/../../b", "", "x", "..", "abcd-1"} {
		if _, err := d.Open(t.Context(), bad, 0, -1); err == nil || errors.Is(err, blob.ErrNotFound) {
			t.Errorf("Open(%q): %v", bad, err)
		}
	}
}

// fromReader records the reader that it is given.
type fromReader struct{ from io.Reader }

func (w *fromReader) Write(p []byte) (int, error) { return len(p), nil }

func (w *fromReader) ReadFrom(r io.Reader) (int64, error) {
	w.from = r
	return io.Copy(struct{ io.Writer }{io.Discard}, r)
}

// Package net uses sendfile only for a few types of readers, among them an *io.LimitedReader
// of an *os.File. The WriteTo of the store's reader must give the destination a reader of this
// type.
func TestDirOffersSendfile(t *testing.T) {
	t.Parallel()
	d := openDir(t, t.TempDir())
	key := blobtest.NewUpload().Complete(t, d, blobtest.Bytes(1, 1000))
	for _, r := range [][2]int64{{0, -1}, {0, 1000}, {10, 50}} {
		o, err := d.Open(t.Context(), key, r[0], r[1])
		if err != nil {
			t.Fatal(err)
		}
		var w fromReader
		if _, err := io.Copy(&w, o); err != nil {
			t.Fatal(err)
		}
		o.Close()
		limited, ok := w.from.(*io.LimitedReader)
		if !ok {
			t.Fatalf("range %d: read from a %T", r, w.from)
		}
		if _, ok := limited.R.(*os.File); !ok {
			t.Fatalf("range %d: read from a %T in an io.LimitedReader", r, limited.R)
		}
	}
}

func TestOpenDir(t *testing.T) {
	t.Parallel()
	if _, err := blob.OpenDir(blob.DirOptions{}); err == nil {
		t.Error("OpenDir took no path")
	}
	path := filepath.Join(t.TempDir(), "a", "b")
	u := blobtest.NewUpload()
	key := u.Complete(t, openDir(t, path), []byte("data"))
	blobtest.Equal(t, openDir(t, path), key, []byte("data"))
	file := filepath.Join(path, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := blob.OpenDir(blob.DirOptions{Path: file}); err == nil {
		t.Error("OpenDir took a file")
	}
}

// BenchmarkDir measures pushes of 64 MiB and of 10 KiB. For comparison it measures hashing
// alone and a plain write of the same bytes, since a push can't be faster than these.
func BenchmarkDir(b *testing.B) {
	for name, size := range map[string]int{"64MiB": 64 << 20, "10KiB": 10 << 10} {
		data := blobtest.Bytes(1, size)
		b.Run("Plain/"+name, func(b *testing.B) {
			file := filepath.Join(b.TempDir(), "plain")
			b.SetBytes(int64(size))
			for b.Loop() {
				f, err := os.Create(file)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := io.Copy(f, io.TeeReader(&pieces{p: data}, sha256.New())); err != nil {
					b.Fatal(err)
				}
				if err := f.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("Push/"+name, func(b *testing.B) {
			d := openDir(b, b.TempDir())
			b.SetBytes(int64(size))
			for b.Loop() {
				a := blobtest.NewUpload().Begin(b, d)
				if _, err := a.ReadFrom(io.TeeReader(&pieces{p: data}, sha256.New())); err != nil {
					b.Fatal(err)
				}
				key, err := a.Finish(b.Context())
				if err != nil {
					b.Fatal(err)
				}
				a.Close()
				if err := d.Delete(b.Context(), []string{key}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// pieces is a reader that returns its bytes as a network connection does: at most 512 KiB per
// Read. It has no method WriteTo.
type pieces struct{ p []byte }

func (r *pieces) Read(p []byte) (int, error) {
	if len(r.p) == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), 512<<10)], r.p)
	r.p = r.p[n:]
	return n, nil
}

// List must leave out files that aren't objects of uploads, and Stat must find foreign objects
// under their keys.
func TestDirListsObjectsOnly(t *testing.T) {
	t.Parallel()
	d, path, u := begin(t, time.Second)
	key := u.Complete(t, d, []byte("!"))
	foreign := "docker/registry/v2/blobs/sha256/ab/data"
	write := func(name string) {
		t.Helper()
		file := filepath.Join(path, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte("12345"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(foreign)
	other := "00"
	if key[:2] == other {
		other = "01"
	}
	for _, name := range []string{".nfs0001", key[:32], key + ".bak", key[:32] + "-x", key[:32] + "-01", "lost+found/x"} {
		write(filepath.Join("objects", key[:2], name))
	}
	write(filepath.Join("objects", other, key)) // no key has this path
	write("objects/README")
	var keys []string
	for o, err := range d.List(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, o.Key)
	}
	if !slices.Equal(keys, []string{key}) {
		t.Errorf("listed: %q, want %s", keys, key)
	}
	if o, err := d.Stat(t.Context(), foreign); err != nil || o.Size != 5 {
		t.Errorf("a foreign object: %+v, %v", o, err)
	}
}

func TestDirThatMustExist(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "blobs")
	if _, err := blob.OpenDir(blob.DirOptions{Path: path, Existing: true}); err == nil {
		t.Error("opened a directory without a store")
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it was made: %v", err)
	}
	openDir(t, path)
	d, err := blob.OpenDir(blob.DirOptions{Path: path, Existing: true})
	if err != nil {
		t.Fatal(err)
	}
	// The listing of a directory that isn't mounted must end with an error, instead of being
	// empty.
	if err := os.RemoveAll(filepath.Join(path, "objects")); err != nil {
		t.Fatal(err)
	}
	var failed error
	for _, err := range d.List(t.Context(), "") {
		failed = err
	}
	if failed == nil || !strings.Contains(failed.Error(), "mounted") {
		t.Errorf("listing what isn't mounted: %v", failed)
	}
	if _, err := d.Stat(t.Context(), blob.NewBase()+"-0"); err == nil || errors.Is(err, blob.ErrNotFound) {
		t.Errorf("looking at what isn't mounted: %v", err)
	}
}

func TestUploadOf(t *testing.T) {
	t.Parallel()
	base := blob.NewBase()
	for _, key := range []string{base + "-0", base + "-17"} {
		if got, ours := blob.UploadOf(key); !ours || got != base {
			t.Errorf("%s: %q, %v", key, got, ours)
		}
	}
	for _, key := range []string{"", base, base + "-", base + "-01", base + "--1", base + "-+1", base + "-1/x", "a/" + base + "-1",
		base[:31] + "-1", strings.ToUpper("ab"+base[2:]) + "-1", "README.txt"} {
		if got, ours := blob.UploadOf(key); ours {
			t.Errorf("%q is taken for an object of upload %s", key, got)
		}
	}
}
