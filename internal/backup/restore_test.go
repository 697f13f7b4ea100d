package backup

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/testscale"
)

// A restore is killed at each of its steps. Until it has ended, no server may start on the
// database. When it is run again, it must go on and end.
func TestKilledRestore(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for i := range 3 {
		r.push(fmt.Sprint("v", i), fmt.Sprint("content ", i))
	}
	target := newTarget(t)
	want := dump(t, r.dsn)
	r.backup(target)
	for _, statsApart := range testscale.Pick([]bool{true}, []bool{false, true}) {
		o := emptyRestoreOptions(t, target)
		o.Parallel = 1
		if statsApart {
			o.Stats = dbtest.EmptyDSN(t)
		}
		for _, at := range testscale.Pick([]string{"objects", "identity", "metadata", "reset", "end"}, []string{"objects", "object", "identity", "rows", "metadata", "migrate", "reset", "end"}) {
			o.reached = func(step string) error {
				if step == at {
					return errKilled
				}
				return nil
			}
			if _, err := Restore(t.Context(), o); !errors.Is(err, errKilled) {
				t.Fatalf("killed at %s: %v", at, err)
			}
			if _, err := db.Migrate(t.Context(), o.Main, db.MigrateOptions{}); !errors.Is(err, db.ErrRestoring) {
				t.Errorf("a server that starts after %s: %v", at, err)
			}
		}
		o.reached = nil
		if _, err := Restore(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		if _, err := db.Migrate(t.Context(), o.Main, db.MigrateOptions{}); err != nil {
			t.Errorf("a server that starts afterwards: %v", err)
		}
		if statsApart {
			for table := range want {
				if isStats(table) {
					delete(want, table)
				}
			}
		}
		wantSame(t, dump(t, o.Main), want)
		wantObjects(t, o.Main, o.Store)
		if _, err := Restore(t.Context(), o); !errors.Is(err, ErrNotEmpty) {
			t.Errorf("restored twice: %v", err)
		}
	}
}

// killedRestore kills a restore before a step.
func killedRestore(t *testing.T, o RestoreOptions, at string) {
	t.Helper()
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

// forgetFlags makes the note of a restore that was interrupted one of an earlier version.
func forgetFlags(t *testing.T, dsn string) {
	t.Helper()
	tag, err := dbtest.Open(t, dsn).Pool.Exec(t.Context(), "UPDATE settings SET value = (value::jsonb - 'keep' - 'new_identity')::text WHERE name = 'restoring' AND value LIKE '%\"keep\"%'")
	if err != nil || tag.RowsAffected() != 1 {
		t.Fatal(tag, err)
	}
}

// A restore was begun in one way and is run again in another. It must not go on so: most blobs would be
// missing, or have two owners.
func TestRestoreGoesOnAsItBegan(t *testing.T) {
	t.Parallel()
	r, digests, target := backedUp(t)
	keeps, renames := func(o *RestoreOptions) { o.Keep = true }, func(o *RestoreOptions) { o.NewIdentity = true }
	plain := func(*RestoreOptions) {}
	cases := map[string]struct {
		began, again func(o *RestoreOptions)
		at, want     string
	}{
		"objects, then the store is kept":         {plain, keeps, "identity", "without --keep-store"},
		"an identity, then the store is kept":     {plain, keeps, "rows", "without --keep-store"},
		"a new identity, then the store is kept":  {renames, keeps, "rows", "with --new-identity"},
		"the store is kept, then copies are made": {keeps, plain, "rows", "with --keep-store"},
		"a new identity, then the old one":        {renames, plain, "objects", "with --new-identity"},
		"the old identity, then a new one":        {plain, renames, "migrate", "without --keep-store and --new-identity"},
	}
	for _, name := range testscale.Pick([]string{"objects, then the store is kept", "the store is kept, then copies are made", "the old identity, then a new one"}, slices.Sorted(maps.Keys(cases))) {
		c, o := cases[name], restoreOptions(t, target)
		c.began(&o)
		if o.Keep {
			o.Store = r.store
		}
		killedRestore(t, o, c.at)
		other := o
		other.Keep, other.NewIdentity = false, false
		c.again(&other)
		if _, err := Restore(t.Context(), other); err == nil || !strings.Contains(err.Error(), "began "+c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		res, err := Restore(t.Context(), o)
		if err != nil || res.Lost != 0 || (res.Identity != r.id) != o.NewIdentity {
			t.Errorf("%s, and then as before: %+v, %v", name, res, err)
		}
		wantObjects(t, o.Main, o.Store)
	}

	// The note of an earlier version doesn't say how the restore began. It goes on in any way that works,
	// and a store that has too little isn't kept.
	o := restoreOptions(t, target)
	o.Parallel = 1
	copied := 0
	o.reached = func(step string) error {
		if step == "object" {
			if copied++; copied > 1 {
				return errKilled
			}
		}
		return nil
	}
	if _, err := Restore(t.Context(), o); !errors.Is(err, errKilled) {
		t.Fatal(err)
	}
	o.reached = nil
	forgetFlags(t, o.Main)
	o.Keep = true
	if _, err := Restore(t.Context(), o); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("of %d objects of the backup, drawn at random, it has 1", len(digests))) {
		t.Errorf("an old note, and a store with one object is kept: %v", err)
	}
	o.Keep = false
	if res, err := Restore(t.Context(), o); err != nil || res.Objects != 3 {
		t.Errorf("an old note: %+v, %v", res, err)
	}
	wantObjects(t, o.Main, o.Store)
	o = restoreOptions(t, target)
	o.NewIdentity = true
	killedRestore(t, o, "rows")
	forgetFlags(t, o.Main)
	o.NewIdentity = false
	if res, err := Restore(t.Context(), o); err != nil || res.Identity == r.id {
		t.Errorf("an old note with a new identity: %+v, %v", res, err)
	}
}

// Each file of a backup is damaged or missing once. The restore must fail, and load no rows: after
// the file is back, a restore into the same database must succeed.
func TestDamaged(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.push("v1", "content")
	target := newTarget(t)
	r.backup(target)
	m := find(t, target, "")
	o := restoreOptions(t, target)
	var files []string
	for f, err := range target.Files(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		if f.Key != markFile && !strings.HasSuffix(f.Key, "/begun") {
			files = append(files, f.Key)
		}
	}
	tried := 0
	for _, name := range files {
		path := filepath.Join(target.Place(), name)
		old, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, change := range []func([]byte) []byte{
			func(b []byte) []byte { b[len(b)/2] ^= 1; return b },
			func(b []byte) []byte { return b[:len(b)-2] },
			func([]byte) []byte { return nil },
		} {
			if changed := change(bytes.Clone(old)); changed == nil {
				err = os.Remove(path)
			} else {
				err = os.WriteFile(path, changed, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			o.Manifest, err = Find(t.Context(), target, m.ID)
			if err == nil && strings.HasPrefix(name, objectsDir) {
				v, verr := Verify(t.Context(), VerifyOptions{Target: target, Manifest: o.Manifest, Deep: true})
				if verr != nil || v.Missing != 1 {
					t.Errorf("verifying with a damaged %s: %+v, %v", name, v, verr)
				}
			}
			if err == nil {
				o.Store = newStore(t)
				_, err = Restore(t.Context(), o)
			}
			if !errors.Is(err, ErrDamaged) && !strings.Contains(fmt.Sprint(err), "is incomplete") {
				t.Errorf("with a damaged %s: %v", name, err)
			}
			tried++
		}
		if err := os.WriteFile(path, old, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if tried < 30 {
		t.Errorf("only %d damages", tried)
	}
	o.Manifest = find(t, target, "")
	o.Store = newStore(t)
	if _, err := Restore(t.Context(), o); err != nil {
		t.Errorf("with the files as they were: %v", err)
	}
}

// The store lacks an object, and another one is damaged. The backup is complete without them,
// and names them.
func TestMissing(t *testing.T) {
	t.Parallel()
	r := setup(t)
	lost, damaged := r.push("a", "content a"), r.push("b", "content b")
	r.push("c", "content c")
	key := func(d oci.Digest) (key string) {
		if err := r.DB.Pool.QueryRow(t.Context(), "SELECT storage_key FROM blobs WHERE digest = $1", d.Bytes()).Scan(&key); err != nil {
			t.Fatal(err)
		}
		return key
	}
	if err := r.store.Delete(t.Context(), []string{key(lost)}); err != nil {
		t.Fatal(err)
	}
	if err := r.store.Put(t.Context(), key(damaged), 9, strings.NewReader("content x")); err != nil {
		t.Fatal(err)
	}
	target := newTarget(t)
	b := r.backup(target)
	want := []string{key(lost), key(damaged)}
	slices.Sort(want)
	if got := slices.Sorted(slices.Values(b.Blobs.FirstMissing)); b.Blobs.Missing != 2 || !slices.Equal(got, want) || b.Blobs.Copied != 1 {
		t.Errorf("the backup lacks %v, want %v", got, want)
	}
	o := restoreOptions(t, target)
	if res, err := Restore(t.Context(), o); err != nil || res.Lost != 2 || res.Objects != 1 {
		t.Errorf("restored: %+v, %v", res, err)
	}
}

// A restore refuses a database or a store that isn't empty, and the store of another registry.
func TestRefusals(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.push("v1", "content")
	target := newTarget(t)
	byReference := r.backup(target, func(o *Options) { o.Blobs = Reference })
	r.backup(target)
	other := setup(t)
	other.push("v1", "content")
	for name, c := range map[string]struct {
		change func(o *RestoreOptions)
		want   string
	}{
		"a database in use":            {func(o *RestoreOptions) { o.Main = other.dsn }, "top_level_namespaces: it is not empty"},
		"statistics in use":            {func(o *RestoreOptions) { o.Stats = other.dsn }, "top_level_namespaces: it is not empty"},
		"a store in use":               {func(o *RestoreOptions) { o.Store = other.store }, "belongs to a registry"},
		"another registry's store":     {func(o *RestoreOptions) { o.Store, o.Keep = other.store, true }, "belongs to another database"},
		"an empty store that is kept":  {func(o *RestoreOptions) { o.Keep = true }, "of 1 objects of the backup, drawn at random, it has 0"},
		"strict, and a kept store":     {func(o *RestoreOptions) { o.Keep, o.Strict = true, true }, "purser check"},
		"from, without a kept store":   {func(o *RestoreOptions) { o.From = r.id }, "only a store that is kept"},
		"no copies":                    {func(o *RestoreOptions) { o.Manifest = byReference.Manifest }, "no copies of the blobs"},
		"a new identity, an old store": {func(o *RestoreOptions) { o.Keep, o.NewIdentity = true, true }, "keeps its identity"},
		"a newer schema":               {func(o *RestoreOptions) { o.Manifest.Schema.Main++ }, "newer"},
		"a build before 1.0": {func(o *RestoreOptions) {
			o.Manifest.Schema = db.Versions{Main: 45, Stats: 10} // as such a build writes it
		}, "before Purser 1.0"},
	} {
		o := restoreOptions(t, target)
		c.change(&o)
		if _, err := Restore(t.Context(), o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if _, err := Run(t.Context(), other.options(target)); err == nil || !strings.Contains(err.Error(), "another registry") {
		t.Errorf("a backup into another registry's target: %v", err)
	}
	full, err := InDirectory(r.store.Path())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Run(t.Context(), r.options(full)); err == nil || !strings.Contains(err.Error(), "has other files") {
		t.Errorf("a backup into a directory in use: %v", err)
	}
	// The store of the old registry can be kept.
	o := restoreOptions(t, target)
	o.Manifest, o.Store, o.Keep = byReference.Manifest, r.store, true
	if _, err := Restore(t.Context(), o); err != nil {
		t.Error(err)
	}
	wantObjects(t, o.Main, r.store)
	// A restored registry that runs beside the old one has an identity of its own.
	o = restoreOptions(t, target)
	o.NewIdentity = true
	res, err := Restore(t.Context(), o)
	if err != nil || res.Identity == r.id {
		t.Errorf("a new identity: %+v, %v", res, err)
	}
	if id, err := o.Store.Identity(t.Context()); id != res.Identity || err != nil {
		t.Errorf("the store's identity is %s, %v", id, err)
	}
}

// Files of another registry, whose import isn't finished, aren't taken for the restored registry's. In
// a new store the copies are its own.
func TestRestoreOfImported(t *testing.T) {
	t.Parallel()
	r := setup(t)
	d := r.push("v1", "content")
	const key = "docker/registry/v2/blobs/sha256/aa/aa/data"
	was, there, err := r.StoredBlob(t.Context(), d)
	if err != nil || !there {
		t.Fatal(there, err)
	}
	put := func(s any) {
		t.Helper()
		if err := s.(blob.Putter).Put(t.Context(), key, int64(len("content")), strings.NewReader("content")); err != nil {
			t.Fatal(err)
		}
	}
	put(r.store)
	for _, sql := range []string{
		"UPDATE blobs SET storage_key = '" + key + "' WHERE storage_key = '" + was.Key + "'",
		"INSERT INTO imports (source, format) VALUES ('docker/registry/v2/', 'distribution')",
		"INSERT INTO gc_foreign_objects (storage_key) VALUES ('docker/registry/v2/blobs/sha256/bb/bb/data')",
	} {
		r.Exec(t, sql)
	}
	target := newTarget(t)
	r.backup(target)
	o := restoreOptions(t, target)
	put(o.Store)
	if _, err := Restore(t.Context(), o); !errors.Is(err, ErrNotEmpty) || !strings.Contains(err.Error(), key) {
		t.Errorf("into the other registry's storage: %v", err)
	}
	o = restoreOptions(t, target)
	if _, err := Restore(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	wantObjects(t, o.Main, o.Store)
	restored := catalogtest.Replica(t, o.Main)
	if list, waiting, _, err := restored.Imports(t.Context()); err != nil || len(list) != 1 || list[0].Finished.IsZero() || waiting != 0 {
		t.Errorf("the imports in a new store: %+v, %d objects wait, %v", list, waiting, err)
	}

	// The restore onto the registry's own store is interrupted. If it went on as one into a new store, the
	// other registry's files would be Purser's.
	o = restoreOptions(t, target)
	o.Store, o.Keep = r.store, true
	killedRestore(t, o, "rows")
	o.Keep = false
	if _, err := Restore(t.Context(), o); err == nil || !strings.Contains(err.Error(), "began with --keep-store") {
		t.Errorf("the store isn't kept any more: %v", err)
	}
	o.Keep = true
	if _, err := Restore(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	restored = catalogtest.Replica(t, o.Main)
	if list, waiting, _, err := restored.Imports(t.Context()); err != nil || len(list) != 1 || !list[0].Finished.IsZero() || waiting != 1 {
		t.Errorf("the imports in the old store: %+v, %d objects wait, %v", list, waiting, err)
	}
}
