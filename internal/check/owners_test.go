package check_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/check"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
)

// bundle is a catalog without a store.
type bundle struct{ catalogtest.Bundle }

func replica(t *testing.T, dsn string) bundle {
	t.Helper()
	return bundle{catalogtest.Replica(t, dsn)}
}

// key returns the storage key of a blob.
func (b bundle) key(t *testing.T, d oci.Digest) string {
	t.Helper()
	row, there, err := b.StoredBlob(t.Context(), d)
	if err != nil || !there {
		t.Fatalf("blob %s: %v, %v", d, there, err)
	}
	return row.Key
}

// begun starts an upload and returns its base, the prefix of its objects' keys.
func (b bundle) begun(t *testing.T) string {
	t.Helper()
	list, err := b.StartUploads(t.Context(), catalog.StartOptions{N: 1})
	if err != nil {
		t.Fatal(err)
	}
	return list[0].StorageKey
}

// doomedKeys returns the storage keys of all pending deletions: "BASE*" for all objects of
// an upload, "BASE* but KEY" if the object KEY is to be kept.
func (b bundle) doomedKeys(t *testing.T) []string {
	t.Helper()
	var keys []string
	if err := b.DB.Pool.QueryRow(t.Context(), `SELECT COALESCE(array_agg(k ORDER BY k), '{}') FROM (
		SELECT storage_key || CASE WHEN of_upload THEN '*' ELSE '' END || COALESCE(' but ' || keep, '') AS k
		FROM gc_doomed_objects) d`).Scan(&keys); err != nil {
		t.Fatal(err)
	}
	return keys
}

// owners returns the rows that ReadOwners returns, as a list.
func (b bundle) owners(t *testing.T, from, to string) []check.Owner {
	t.Helper()
	var list []check.Owner
	for o, err := range check.ReadOwners(t.Context(), b.DB, from, to) {
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, o)
	}
	return list
}

// ReadOwners must return all owner rows in the order of their keys, as they were at one
// moment, even if there are more rows than one FETCH reads.
func TestOwners(t *testing.T) { catalogtest.AtBoth(t, testOwners) }

func testOwners(t *testing.T, dsn string) {
	b := replica(t, dsn)
	b.Exec(t, `INSERT INTO blobs (digest, size, storage_key, lost_at)
		SELECT '\x01' || sha256(i::text::bytea), i, md5(i::text) || '-0', CASE WHEN i = 7 THEN now() END
		FROM generate_series(1, 2500) i`)
	b.Exec(t, `INSERT INTO uploads (id, repository, storage_key) SELECT gen_random_uuid(), '', md5('u' || i) FROM generate_series(1, 20) i`)
	b.Exec(t, `INSERT INTO gc_doomed_objects (storage_key, of_upload, keep)
		SELECT md5('d' || i) || CASE WHEN i % 2 = 0 THEN '' ELSE '-1' END, i % 2 = 0, CASE WHEN i % 4 = 0 THEN md5('d' || i) || '-3' END
		FROM generate_series(1, 20) i`)
	b.Exec(t, `INSERT INTO blobs (digest, size, storage_key) VALUES ('\x01' || sha256('foreign'), 1, 'docker/data'), ('\x01' || sha256('first'), 1, '!/data')`)
	all := b.owners(t, "", "")
	if len(all) != 2500+20+20+2 {
		t.Fatalf("%d owners", len(all))
	}
	kinds := map[check.OwnerKind]int{}
	keep := 0
	for i, o := range all {
		if i > 0 && all[i-1].Key >= o.Key {
			t.Errorf("%s comes after %s", o.Key, all[i-1].Key)
		}
		kinds[o.Kind]++
		if o.Keep != "" {
			keep++
		}
		if o.Kind == check.OwnerBlob && (o.Digest.IsZero() || o.Lost != (o.Size == 7)) {
			t.Errorf("%+v", o)
		}
	}
	if kinds[check.OwnerUpload] != 20 || kinds[check.OwnerDoomed] != 10 || kinds[check.OwnerDoomedUpload] != 10 || keep != 5 {
		t.Errorf("%v, %d keep something", kinds, keep)
	}
	var parts []check.Owner
	for _, r := range [][2]string{{"", "1"}, {"1", "a"}, {"a", "f"}, {"f", ""}} {
		parts = append(parts, b.owners(t, r[0], r[1])...)
	}
	if !slices.Equal(parts, all) {
		t.Errorf("%d owners in parts, %d at once", len(parts), len(all))
	}
	// Blobs of which no page was read yet are deleted after ReadOwners has returned the first row. ReadOwners
	// must still return every row. A caller may also stop early.
	n := 0
	for o, err := range check.ReadOwners(t.Context(), b.DB, "", "") {
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			b.Exec(t, "DELETE FROM blobs WHERE storage_key >= 'f'")
		}
		if n++; n == 2000 && o.Key != all[1999].Key {
			t.Errorf("row 2,000 is %s, was %s", o.Key, all[1999].Key)
		}
	}
	if n != len(all) {
		t.Errorf("%d owners, %d at the beginning", n, len(all))
	}
	for range check.ReadOwners(t.Context(), b.DB, "", "") {
		break
	}
	left := slices.DeleteFunc(all, func(o check.Owner) bool { return o.Kind == check.OwnerBlob && o.Key >= "f" })
	if got := b.owners(t, "", ""); !slices.Equal(got, left) {
		t.Errorf("%d owners after the reader of others stopped, want %d", len(got), len(left))
	}
}

// Each kind of row must own its objects, and no others.
func TestUnowned(t *testing.T) { catalogtest.AtBoth(t, testUnowned) }

func testUnowned(t *testing.T, dsn string) {
	b := replica(t, dsn)
	d := b.Push(t, "r", "layer")
	ofBlob := b.key(t, d)
	upload, doomed, gone := b.begun(t), blob.NewBase(), blob.NewBase()
	kept := doomed + "-4"
	b.Exec(t, "INSERT INTO gc_doomed_objects (storage_key, of_upload, keep) VALUES ($1, true, $2)", doomed, kept)
	b.Exec(t, "INSERT INTO gc_doomed_objects (storage_key) VALUES ($1)", gone+"-1")
	base, _ := blob.UploadOf(ofBlob)
	want := []string{base + "-9", gone + "-2", kept}
	slices.Sort(want)
	got, err := check.FindUnowned(t.Context(), b.DB, append([]string{ofBlob, upload + "-0", upload + "-12", doomed + "-0", gone + "-1"}, want...))
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("unowned: %q, %v, want %q", got, err, want)
	}
	got, err = check.FindUnownedUploads(t.Context(), b.DB, []string{upload, doomed, gone})
	if err != nil || !slices.Equal(got, []string{gone}) {
		t.Errorf("unowned: %q, %v, want %s", got, err, gone)
	}

	if err := check.RecordUnowned(t.Context(), b.DB, []blob.Object{{Key: want[0], Size: 5}, {Key: gone + "-1", Size: 9}}, time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := check.RecordUnownedUploads(t.Context(), b.DB, []string{gone, base}, time.Hour); err != nil {
		t.Fatal(err)
	}
	doomedNow := []string{want[0], gone + "-1", doomed + "* but " + kept, gone + "*", base + "* but " + ofBlob}
	slices.Sort(doomedNow)
	if got := b.doomedKeys(t); !slices.Equal(got, doomedNow) {
		t.Errorf("doomed: %q, want %q", got, doomedNow)
	}
	if n := b.Count(t, "SELECT count(*) FROM gc_doomed_objects WHERE delete_after > now() + interval '50 minutes'"); n != 3 {
		t.Errorf("%d wait for an hour, want the 3 new ones", n)
	}
	if got, err := check.FindUnowned(t.Context(), b.DB, want[:1]); err != nil || len(got) != 0 {
		t.Errorf("%q has no owner though it is doomed: %v", got, err)
	}
}

// FindUnowned and RecordUnownedUploads must read the table of blobs once, however many keys
// they are given.
func TestUnownedReadsBlobsOnce(t *testing.T) {
	t.Parallel()
	b := replica(t, dbtest.DSN(t))
	b.Exec(t, `INSERT INTO blobs (digest, size, storage_key)
		SELECT '\x01' || sha256(i::text::bytea), i, md5(i::text) || '-0' FROM generate_series(1, 20000) i`)
	b.Exec(t, "ANALYZE blobs")
	keys := make([]string, 20_000)
	for i := range keys {
		keys[i] = blob.NewBase() + "-0"
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // 20,000 times 20,000 comparisons take longer
	defer cancel()
	got, err := check.FindUnowned(ctx, b.DB, keys)
	if err != nil || len(got) != len(keys) {
		t.Fatalf("%d unowned, %v", len(got), err)
	}
	if err := check.RecordUnownedUploads(ctx, b.DB, slices.Collect(bases(keys)), 0); err != nil {
		t.Fatal(err)
	}
	if n := len(b.doomedKeys(t)); n != len(keys) {
		t.Error(fmt.Sprint(n, " doomed"))
	}
}

func bases(keys []string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for _, k := range keys {
			if base, _ := blob.UploadOf(k); !yield(base) {
				return
			}
		}
	}
}
