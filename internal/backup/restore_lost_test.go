package backup

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/testscale"
)

// contents are what backedUp pushes.
var contents = []string{"content 0", "content 1", "content 2", "content 3"}

// backedUp is a registry with four blobs, and the target of a backup of it.
func backedUp(t *testing.T) (*registry, []oci.Digest, Target) {
	t.Helper()
	r := setup(t)
	var digests []oci.Digest
	for _, c := range contents {
		digests = append(digests, r.push("v"+c[len(c)-1:], c))
	}
	target := newTarget(t)
	r.backup(target)
	return r, digests, target
}

// key returns the key of a blob's object.
func (r *registry) key(d oci.Digest) (key string) {
	r.t.Helper()
	if err := r.DB.Pool.QueryRow(r.t.Context(), "SELECT storage_key FROM blobs WHERE digest = $1", d.Bytes()).Scan(&key); err != nil {
		r.t.Fatal(err)
	}
	return key
}

// copyOf returns the path of the copy of a blob's object in a directory of backups.
func (r *registry) copyOf(target Target, d oci.Digest) string {
	r.t.Helper()
	return filepath.Join(target.Place(), object{key: r.key(d)}.file())
}

// lostIn returns the digests of the blobs that a database has marked as lost.
func lostIn(t *testing.T, dsn string) (lost []string) {
	t.Helper()
	rows, err := dbtest.Open(t, dsn).Pool.Query(t.Context(), "SELECT digest FROM blobs WHERE lost_at IS NOT NULL")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var b []byte
		if err := rows.Scan(&b); err != nil {
			t.Fatal(err)
		}
		d, err := oci.DigestFromBytes(b)
		if err != nil {
			t.Fatal(err)
		}
		lost = append(lost, d.String())
	}
	if rows.Err() != nil {
		t.Fatal(rows.Err())
	}
	slices.Sort(lost)
	return lost
}

func sorted(digests ...oci.Digest) (list []string) {
	for _, d := range digests {
		list = append(list, d.String())
	}
	slices.Sort(list)
	return list
}

func write(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func removeAll(t *testing.T, path string) {
	t.Helper()
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
}

// brokenDisk is a target whose disk can't read one of the files to its end.
type brokenDisk struct {
	Target
	file string
}

func (b brokenDisk) Open(ctx context.Context, name string) (io.ReadCloser, error) {
	r, err := b.Target.Open(ctx, name)
	if err != nil || name != b.file {
		return r, err
	}
	broken := iotest.ErrReader(&fs.PathError{Op: "read", Path: name, Err: syscall.EIO})
	return struct {
		io.Reader
		io.Closer
	}{io.MultiReader(io.LimitReader(r, 3), broken), r}, nil
}

// One of four copies is damaged, in each of the ways in which a copy can be. All others are restored,
// the blob is marked as lost, and a push heals it.
func TestRestoreWithoutOneObject(t *testing.T) {
	t.Parallel()
	r, digests, target := backedUp(t)
	bad := digests[2]
	path := r.copyOf(target, bad)
	damages := map[string]func(){
		"flipped":   func() { write(t, path, []byte("content X")) },
		"truncated": func() { write(t, path, []byte("content")) },
		"empty":     func() { write(t, path, nil) },
		"missing":   func() { removeAll(t, path) },
		"unreadable": func() {
			target = brokenDisk{target, object{key: r.key(bad)}.file()}
		},
	}
	for _, name := range testscale.Pick([]string{"flipped", "unreadable"}, slices.Sorted(maps.Keys(damages))) {
		whole := target
		damages[name]()
		o := restoreOptions(t, whole)
		o.Target = target
		o.Strict = true
		if _, err := Restore(t.Context(), o); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), r.key(bad)) {
			t.Errorf("%s, strict: %v", name, err)
		}
		o.Strict = false // into the same database and store, which are still empty
		res, err := Restore(t.Context(), o)
		if err != nil || res.Lost != 1 || res.Objects != 3 || len(res.FirstLost) != 1 {
			t.Fatalf("%s: %+v, %v", name, res, err)
		}
		if l := res.FirstLost[0]; l.Digest != bad || l.Size != int64(len(contents[2])) || !slices.Equal(l.Repositories, []string{"acme/app"}) {
			t.Errorf("%s: the lost blob is %+v, want %s", name, l, bad)
		}
		if lost := lostIn(t, o.Main); !slices.Equal(lost, sorted(bad)) {
			t.Errorf("%s: the database has lost %v, want %s", name, lost, bad)
		}
		restored := catalogtest.Replica(t, o.Main)
		if _, err := restored.Blob(t.Context(), "acme/app", bad); err == nil {
			t.Errorf("%s: the lost blob is served", name)
		}
		restored.Push(t, "acme/app", contents[2])
		if lost := lostIn(t, o.Main); len(lost) != 0 {
			t.Errorf("%s: after a push %v are lost", name, lost)
		}
		target = whole
		write(t, path, []byte(contents[2]))
	}
	o := restoreOptions(t, target)
	o.Strict = true
	if res, err := Restore(t.Context(), o); err != nil || res.Lost != 0 || res.Objects != 4 {
		t.Errorf("with all copies: %+v, %v", res, err)
	}
}

// Blobs were marked as lost before the backup. Those whose copies an earlier backup has made come back,
// and the others are named. A backup of an earlier version has no list of them, but has their rows.
func TestRestoreOfLost(t *testing.T) {
	t.Parallel()
	r, digests, target := backedUp(t)
	r.loses(digests[:3]...)
	removeAll(t, r.copyOf(target, digests[1]))
	write(t, r.copyOf(target, digests[2]), []byte("content X"))
	r.backup(target)
	o := restoreOptions(t, target)
	o.Strict = true
	if _, err := Restore(t.Context(), o); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "lacks 2 of the 4 objects") {
		t.Errorf("strict: %v", err)
	}
	o.Strict = false
	copied := int64(0)
	for _, at := range []string{"identity", "migrate", ""} {
		o.reached = func(step string) error {
			if step == at {
				return errKilled
			}
			return nil
		}
		res, err := Restore(t.Context(), o)
		copied += res.Objects
		if at != "" {
			if !errors.Is(err, errKilled) {
				t.Fatalf("killed at %s: %v", at, err)
			}
			continue
		}
		if err != nil || copied != 2 || res.Lost != 2 || len(res.FirstLost) != 2 {
			t.Fatalf("%+v, %v, %d objects were copied", res, err, copied)
		}
		var named []string
		for _, l := range res.FirstLost {
			named = append(named, l.Digest.String())
		}
		if slices.Sort(named); !slices.Equal(named, sorted(digests[1:3]...)) {
			t.Errorf("named are %v", named)
		}
	}
	if lost := lostIn(t, o.Main); !slices.Equal(lost, sorted(digests[1:3]...)) {
		t.Errorf("lost are %v", lost)
	}
	restored := catalogtest.Replica(t, o.Main)
	if _, err := restored.Blob(t.Context(), "acme/app", digests[0]); err != nil {
		t.Errorf("the blob with a copy: %v", err)
	}
	if wrong, err := blob.Look(t.Context(), o.Store, r.key(digests[0]), int64(len(contents[0]))); wrong != "" || err != nil {
		t.Errorf("its object: %s, %v", wrong, err)
	}

	o = restoreOptions(t, target)
	o.Manifest.Lost = Objects{}
	if res, err := Restore(t.Context(), o); err != nil || res.Lost != 3 || len(res.FirstLost) != 3 || res.Objects != 1 {
		t.Errorf("without a list of lost blobs: %+v, %v", res, err)
	}
}

// More than half of the copies are gone, as when a volume isn't mounted. Nothing is restored then,
// unless it is asked for.
func TestRestoreWithoutMost(t *testing.T) {
	t.Parallel()
	_, digests, target := backedUp(t)
	removeAll(t, filepath.Join(target.Place(), "objects"))
	o := restoreOptions(t, target)
	if _, err := Restore(t.Context(), o); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "--force") {
		t.Fatal(err)
	}
	o.Force = true
	if res, err := Restore(t.Context(), o); err != nil || res.Lost != 4 {
		t.Fatalf("%+v, %v", res, err)
	}
	if lost := lostIn(t, o.Main); !slices.Equal(lost, sorted(digests...)) {
		t.Errorf("lost are %v", lost)
	}
}

// The volume of the copies is unmounted after the restore has read them. What it lacks then isn't
// lost: the restore stops, and goes on when the volume is there again.
func TestRestoreStopsWithoutItsVolume(t *testing.T) {
	t.Parallel()
	r, digests, target := backedUp(t)
	write(t, r.copyOf(target, digests[0]), []byte("content X"))
	objects := filepath.Join(target.Place(), "objects")
	o := restoreOptions(t, target)
	o.Parallel = 1
	copied := 0
	o.reached = func(step string) error {
		if step != "object" {
			return nil
		}
		if copied++; copied == 2 {
			return os.Rename(objects, objects+".away")
		}
		return nil
	}
	if _, err := Restore(t.Context(), o); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "since the restore has read it") {
		t.Fatal(err)
	}
	if err := os.Rename(objects+".away", objects); err != nil {
		t.Fatal(err)
	}
	o.reached = nil
	if res, err := Restore(t.Context(), o); err != nil || res.Lost != 1 {
		t.Fatalf("%+v, %v", res, err)
	}
	if lost := lostIn(t, o.Main); !slices.Equal(lost, sorted(digests[0])) {
		t.Errorf("lost are %v, want %s", lost, digests[0])
	}
}

// A restore that marks blobs as lost is killed at each step, and ends when it is run again. A copy that
// gets damaged after it was copied isn't lost.
func TestKilledRestoreWithLosses(t *testing.T) {
	t.Parallel()
	r, digests, target := backedUp(t)
	write(t, r.copyOf(target, digests[0]), []byte("content X"))
	o := restoreOptions(t, target)
	o.Parallel = 1
	for _, at := range testscale.Pick([]string{"object", "identity", "migrate"}, []string{"objects", "object", "identity", "rows", "metadata", "migrate", "reset", "end"}) {
		o.reached = func(step string) error {
			if step == at {
				return errKilled
			}
			return nil
		}
		if _, err := Restore(t.Context(), o); !errors.Is(err, errKilled) {
			t.Fatalf("killed at %s: %v", at, err)
		}
		if at == "identity" { // all objects are copied
			removeAll(t, r.copyOf(target, digests[1]))
		}
	}
	o.reached = nil
	if res, err := Restore(t.Context(), o); err != nil || res.Lost != 1 || len(res.FirstLost) != 1 {
		t.Fatalf("%+v, %v", res, err)
	}
	if lost := lostIn(t, o.Main); !slices.Equal(lost, sorted(digests[0])) {
		t.Errorf("lost are %v, want %s", lost, digests[0])
	}
	if _, err := db.Migrate(t.Context(), o.Main, db.MigrateOptions{}); err != nil {
		t.Errorf("a server that starts afterwards: %v", err)
	}
}

// A deep backup reads the copies that the target has, and makes damaged ones again. An ordinary one
// looks at their sizes alone.
func TestDeepBackup(t *testing.T) {
	t.Parallel()
	r, digests, target := backedUp(t)
	write(t, r.copyOf(target, digests[0]), []byte("content X"))
	if b := r.backup(target); b.Blobs.Copied != 0 {
		t.Errorf("an ordinary backup copied %d objects", b.Blobs.Copied)
	}
	deep := func(o *Options) { o.Deep = true }
	if b := r.backup(target, deep); b.Blobs.Copied != 1 || b.Blobs.Missing != 0 {
		t.Errorf("a deep backup copied %d objects, and %d are missing", b.Blobs.Copied, b.Blobs.Missing)
	}
	if v, err := Verify(t.Context(), VerifyOptions{Target: target, Manifest: find(t, target, ""), Deep: true}); err != nil || v.Missing != 0 {
		t.Errorf("%+v, %v", v, err)
	}
	// The store has lost an object whose copy is whole, and another one whose copy is damaged.
	write(t, r.copyOf(target, digests[1]), []byte("content X"))
	if err := r.store.Delete(t.Context(), []string{r.key(digests[1]), r.key(digests[2])}); err != nil {
		t.Fatal(err)
	}
	b := r.backup(target, deep)
	if b.Blobs.Copied != 0 || b.Blobs.Missing != 1 || !slices.Equal(b.Blobs.FirstMissing, []string{r.key(digests[1])}) {
		t.Errorf("a deep backup of a store without two objects: %+v", b.Blobs)
	}
	o := restoreOptions(t, target)
	if res, err := Restore(t.Context(), o); err != nil || res.Lost != 1 || res.FirstLost[0].Digest != digests[1] {
		t.Errorf("%+v, %v", res, err)
	}
}

// The database alone is lost, and is restored onto the store. What has happened to the store before
// decides whether it is taken for the registry's.
func TestKeptStore(t *testing.T) {
	t.Parallel()
	const another = "0d6cf7a3-5f5c-4c62-9a2e-3c1c0a4e1d11"
	r, digests, target := backedUp(t)
	identityFile := func(s *blob.Dir) string { return filepath.Join(s.Path(), "objects", blob.IdentityKey) }
	unclaim := func(t *testing.T, s *blob.Dir) { removeAll(t, identityFile(s)) }
	give := func(t *testing.T, s *blob.Dir, id string) {
		if err := s.SetIdentity(t.Context(), id, true); err != nil {
			t.Fatal(err)
		}
	}
	lose := func(t *testing.T, s *blob.Dir, some ...oci.Digest) {
		for _, d := range some {
			if err := s.Delete(t.Context(), []string{r.key(d)}); err != nil {
				t.Fatal(err)
			}
		}
	}
	force := func(o *RestoreOptions) { o.Force = true }
	from := func(id string) func(*RestoreOptions) { return func(o *RestoreOptions) { o.From = id } }
	cases := map[string]struct {
		before  func(t *testing.T, s *blob.Dir, dsn string)
		refused string // without `with`; "" if it isn't
		with    func(o *RestoreOptions)
	}{
		"it is as it was":      {},
		"it lost its identity": {before: func(t *testing.T, s *blob.Dir, _ string) { unclaim(t, s) }},
		"it was restored in part": {before: func(t *testing.T, s *blob.Dir, _ string) {
			unclaim(t, s)
			lose(t, s, digests[0], digests[1])
		}},
		"it lost its identity and most objects": {before: func(t *testing.T, s *blob.Dir, _ string) {
			unclaim(t, s)
			lose(t, s, digests[:3]...)
		}, refused: "it has 1", with: force},
		"it is empty": {before: func(t *testing.T, s *blob.Dir, _ string) {
			unclaim(t, s)
			lose(t, s, digests...)
		}, refused: "it has 0", with: force},
		"its identity is damaged": {before: func(t *testing.T, s *blob.Dir, _ string) {
			write(t, identityFile(s), []byte("{"))
		}, refused: "--force", with: force},
		"another database took it": {before: func(t *testing.T, s *blob.Dir, _ string) {
			give(t, s, another)
		}, refused: "--from " + another, with: from(another)},
		"another database took it, and it lost most objects": {before: func(t *testing.T, s *blob.Dir, _ string) {
			give(t, s, another)
			lose(t, s, digests[:3]...)
		}, refused: "--from " + another, with: func(o *RestoreOptions) { o.From, o.Force = another, true }},
		"the new database took it": {before: func(t *testing.T, s *blob.Dir, dsn string) {
			give(t, s, another)
			claim(t, dsn, another)
		}},
		"the new database has another identity": {before: func(t *testing.T, s *blob.Dir, dsn string) {
			claim(t, dsn, another)
		}},
	}
	for _, name := range testscale.Pick([]string{"it lost its identity", "another database took it", "the new database took it"}, slices.Sorted(maps.Keys(cases))) {
		c := cases[name]
		t.Run(name, func(t *testing.T) {
			o := restoreOptions(t, target)
			o.Keep = true
			store := o.Store.(*blob.Dir)
			for i, d := range digests {
				if err := store.Put(t.Context(), r.key(d), int64(len(contents[i])), strings.NewReader(contents[i])); err != nil {
					t.Fatal(err)
				}
			}
			give(t, store, r.id)
			if c.before != nil {
				c.before(t, store, o.Main)
			}
			if c.refused != "" {
				if _, err := Restore(t.Context(), o); err == nil || !strings.Contains(err.Error(), c.refused) {
					t.Fatalf("refused with %v, want %q", err, c.refused)
				}
				wrong := o
				wrong.From = "11111111-5f5c-4c62-9a2e-3c1c0a4e1d11"
				if _, err := Restore(t.Context(), wrong); err == nil {
					t.Fatal("restored with an identity that the store hasn't")
				}
				c.with(&o)
			}
			restoreKilledOnce(t, o)
			if id, err := store.Identity(t.Context()); id != r.id || err != nil {
				t.Errorf("the store's identity is %s, %v", id, err)
			}
			if own := identityOf(t, o.Main); own != r.id {
				t.Errorf("the database's identity is %s, want %s", own, r.id)
			}
		})
	}
}

// claim makes a database one on which a server was started with a store of this identity.
func claim(t *testing.T, dsn, id string) {
	t.Helper()
	if _, err := db.Migrate(t.Context(), dsn, db.MigrateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := dbtest.Open(t, dsn).Pool.Exec(t.Context(), "INSERT INTO store_identity (id, place, confirmed_at) VALUES ($1, 'there', now())", id); err != nil {
		t.Fatal(err)
	}
}

func identityOf(t *testing.T, dsn string) (id string) {
	t.Helper()
	if err := dbtest.Open(t, dsn).Pool.QueryRow(t.Context(), "SELECT id FROM store_identity").Scan(&id); err != nil {
		t.Fatal(err)
	}
	return id
}

// restoreKilledOnce kills a restore after it has given the store its identity, and runs it again
// without the options by which it was begun.
func restoreKilledOnce(t *testing.T, o RestoreOptions) {
	t.Helper()
	for _, at := range testscale.Pick([]string{"rows"}, []string{"identity", "rows"}) {
		o.reached = func(step string) error {
			if step == at {
				return errKilled
			}
			return nil
		}
		if _, err := Restore(t.Context(), o); !errors.Is(err, errKilled) {
			t.Fatalf("killed at %s: %v", at, err)
		}
	}
	o.reached, o.From = nil, ""
	if _, err := Restore(t.Context(), o); err != nil {
		t.Fatal(err)
	}
}

// A server was started on the new database and the new, empty store before the restore.
func TestRestoreAfterAServer(t *testing.T) {
	t.Parallel()
	r, _, target := backedUp(t)
	o := restoreOptions(t, target)
	const own = "0d6cf7a3-5f5c-4c62-9a2e-3c1c0a4e1d11"
	if err := o.Store.SetIdentity(t.Context(), own, false); err != nil {
		t.Fatal(err)
	}
	claim(t, o.Main, own)
	restoreKilledOnce(t, o)
	if id, err := o.Store.Identity(t.Context()); id != r.id || err != nil {
		t.Errorf("the store's identity is %s, %v", id, err)
	}
	wantObjects(t, o.Main, o.Store)
}
