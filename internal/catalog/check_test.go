package catalog_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
)

// row returns a blob's row.
func (b bundle) row(t *testing.T, d oci.Digest) catalog.Owner {
	t.Helper()
	o, there, err := b.BlobOwner(t.Context(), d)
	if err != nil || !there {
		t.Fatalf("blob %s: %v, %v", d, there, err)
	}
	return o
}

// lose marks a blob as lost.
func (b bundle) lose(t *testing.T, d oci.Digest) {
	t.Helper()
	marked, err := b.MarkLost(t.Context(), []catalog.Owner{b.row(t, d)})
	if err != nil || !marked[d] {
		t.Fatalf("marked: %v, %v", marked, err)
	}
}

// doomedKeys lists the keys waiting for deletion: "BASE*" for all objects of an upload,
// "BASE* but KEY" if one of them is kept.
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

// A lost blob is reported as unknown to every client, until somebody pushes it again: then
// every repository that had it has it again.
func TestLostBlob(t *testing.T) { catalogtest.AtBoth(t, testLostBlob) }

func testLostBlob(t *testing.T, dsn string) {
	b := replica(t, dsn)
	ctx := t.Context()
	config, layer := b.Push(t, "r", "config"), b.Push(t, "r", "layer")
	b.Push(t, "other", "layer")
	payload := catalogtest.Image(t, config, []oci.Digest{layer}, nil)
	b.Put(t, "r", payload, "v1")
	old := b.row(t, layer)
	b.Exec(t, "DELETE FROM gc_doomed_objects")
	b.lose(t, layer)

	_, err := b.Blob(ctx, "r", layer)
	catalogtest.WantCode(t, err, oci.BlobUnknown)
	_, err = b.BlobNow(ctx, "r", layer)
	catalogtest.WantCode(t, err, oci.BlobUnknown)
	_, err = b.PromiseBlob(ctx, "r", layer)
	catalogtest.WantCode(t, err, oci.BlobUnknown)
	if mounted, err := b.Mount(ctx, "third", "r", layer); err != nil || mounted {
		t.Errorf("mounted: %v, %v", mounted, err)
	}
	for what, payload := range map[string][]byte{
		"known": payload, "new": catalogtest.Image(t, config, []oci.Digest{layer}, map[string]any{"annotations": map[string]string{"n": "2"}}),
		"configuration": catalogtest.Image(t, layer, nil, nil),
	} {
		_, err = b.TryPut(ctx, "r", payload, "v2")
		catalogtest.WantCode(t, err, oci.ManifestBlobUnknown)
		if !strings.Contains(err.Error(), layer.String()) || strings.Contains(err.Error(), config.String()) {
			t.Errorf("%s manifest: %v, want the lost blob named and no other", what, err)
		}
	}
	if _, err := b.ManifestByTag(ctx, "r", "v1"); err != nil {
		t.Errorf("the manifest isn't lost: %v", err)
	}

	b.Push(t, "third", "layer")
	now := b.row(t, layer)
	if now.Key == old.Key || now.Lost || now.Size != 5 {
		t.Errorf("%+v after the push, was %+v", now, old)
	}
	if got := b.doomedKeys(t); !slices.Equal(got, []string{old.Key}) {
		t.Errorf("doomed: %q, want the old object %s", got, old.Key)
	}
	for _, path := range []string{"r", "other", "third"} {
		if got, err := b.PromiseBlob(ctx, path, layer); err != nil || got.StorageKey != now.Key {
			t.Errorf("%s: %+v, %v", path, got, err)
		}
	}
	if _, err := b.TryPut(ctx, "r", payload, "v2"); err != nil {
		t.Error(err)
	}
	b.Owned(t)
}

// When the blob takes its new object, the other objects of the upload are deleted, and the
// former object stays if it belongs to another registry.
func TestLostBlobTakesTheObjectAlone(t *testing.T) {
	t.Parallel()
	b := setup(t)
	d := b.Push(t, "r", "layer")
	const foreign = "docker/registry/v2/blobs/sha256/ab/data"
	b.Exec(t, "UPDATE blobs SET storage_key = $1, size = 3", foreign)
	b.lose(t, d)
	u := b.begun(t, "r")
	u.Size = 5
	key := u.StorageKey + "-7"
	if err := b.CommitUpload(t.Context(), u, d, key, true); err != nil {
		t.Fatal(err)
	}
	if now := b.row(t, d); now.Key != key || now.Size != 5 || now.Lost {
		t.Errorf("%+v, want the new object %s", now, key)
	}
	if got, want := b.doomedKeys(t), []string{u.StorageKey + "* but " + key}; !slices.Equal(got, want) {
		t.Errorf("doomed: %q, want %q", got, want)
	}
	// The upload's row is gone, so the upload can't be committed twice.
	catalogtest.WantCode(t, b.CommitUpload(t.Context(), u, d, key, true), oci.BlobUploadInvalid)
}

// A lost upload doesn't give its object to a lost blob.
func TestLostBlobRefusesAStalledUpload(t *testing.T) {
	t.Parallel()
	b := setup(t)
	d := b.Push(t, "r", "layer")
	b.lose(t, d)
	before := b.row(t, d)
	u := b.begun(t, "r")
	if _, _, err := b.ClaimUpload(t.Context(), u, 1); err != nil {
		t.Fatal(err)
	}
	catalogtest.WantCode(t, b.CommitUpload(t.Context(), u, d, u.StorageKey+"-7", false), oci.BlobUploadInvalid)
	if now := b.row(t, d); now != before {
		t.Errorf("%+v, was %+v", now, before)
	}
	if got := b.doomedKeys(t); len(got) != 0 {
		t.Errorf("doomed: %q", got)
	}
}

// A blob is marked as lost only if it still has the object that was looked at, and only
// once.
func TestMarkComparesTheObject(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := t.Context()
	d, other := b.Push(t, "r", "layer"), b.Push(t, "r", "other")
	seen := []catalog.Owner{b.row(t, d), b.row(t, other)}
	stale := seen[0]
	stale.Key = blob.NewBase() + "-0"
	for _, mark := range []func(context.Context, []catalog.Owner) (map[oci.Digest]bool, error){b.MarkLost, b.MarkFound} {
		if marked, err := mark(ctx, []catalog.Owner{stale}); err != nil || len(marked) != 0 {
			t.Errorf("marked by an object that it hasn't: %v, %v", marked, err)
		}
		if marked, err := mark(ctx, seen); err != nil || len(marked) != 2 {
			t.Errorf("marked: %v, %v", marked, err)
		}
		if marked, err := mark(ctx, seen); err != nil || len(marked) != 0 {
			t.Errorf("marked twice: %v, %v", marked, err)
		}
	}
	if b.row(t, d).Lost || b.row(t, other).Lost {
		t.Error("still lost")
	}
	if _, err := b.Blob(ctx, "r", d); err != nil {
		t.Error(err)
	}
}

// Marking a blob as lost notifies the caches of every process, including the one that marks
// it: a server's own catalog may run a check.
func TestMarksReachCaches(t *testing.T) {
	t.Parallel()
	dsn := dbtest.DSN(t)
	b := replica(t, dsn)
	server := bundle{catalogtest.Bundle{Catalog: catalog.New(catalog.Options{DB: b.DB, Background: dbtest.Open(t, dsn), Log: slog.New(slog.DiscardHandler)}), DB: b.DB}}
	ctx := t.Context()
	d := b.Push(t, "r", "layer")
	b.Push(t, "other", "layer")
	b.Listen(t)
	for range 3 {
		catalogtest.Eventually(t, "the blob is in the cache", func() bool {
			return cached(t, func(ctx context.Context) error { _, err := b.PromiseBlob(ctx, "r", d); return err }) &&
				cached(t, func(ctx context.Context) error { _, err := b.Blob(ctx, "other", d); return err })
		})
		server.lose(t, d)
		for _, path := range []string{"r", "other"} {
			catalogtest.Eventually(t, path+" hears that the blob is lost", func() bool {
				_, err := b.PromiseBlob(ctx, path, d)
				return oci.CodeOf(err) == oci.BlobUnknown
			})
		}
		if marked, err := server.MarkFound(ctx, []catalog.Owner{b.row(t, d)}); err != nil || len(marked) != 1 {
			t.Fatal(marked, err)
		}
	}
}

// An ordinary push updates no blob, so no trigger of updates runs for it.
func TestPushesUpdateNoBlob(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Exec(t, `CREATE FUNCTION complain () RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'a push updates blobs'; END; $$;
		CREATE TRIGGER complain AFTER UPDATE ON blobs FOR EACH STATEMENT EXECUTE FUNCTION complain()`)
	config, layer := b.Push(t, "r", "config"), b.Push(t, "r", "layer")
	b.Push(t, "r", "layer")
	b.Push(t, "other", "layer")
	b.Put(t, "r", catalogtest.Image(t, config, []oci.Digest{layer}, nil), "v1")
	if ok, err := b.Mount(t.Context(), "third", "r", layer); err != nil || !ok {
		t.Fatal(ok, err)
	}
	if _, err := b.MarkLost(t.Context(), []catalog.Owner{b.row(t, layer)}); err == nil {
		t.Error("the trigger says nothing when a blob is updated")
	}
}

// Two uploads of a lost blob meet: the blob takes one's object, and the other's object is
// deleted.
func TestAttackLostBlobIsPushedTwice(t *testing.T) {
	t.Parallel()
	b := setup(t)
	d := b.Push(t, "r", "layer")
	b.lose(t, d)
	old := b.row(t, d)
	hold, watch := b.Session(t), b.Session(t)
	hold.Exec(t, "BEGIN")
	hold.Exec(t, "SELECT FROM blobs WHERE digest = $1 FOR NO KEY UPDATE", d.Bytes())
	u, v := b.begun(t, "r"), b.begun(t, "other")
	first := catalogtest.Later(func() error { return b.commit(u, "layer") })
	hold.Blocks(t, watch, 1)
	second := catalogtest.Later(func() error { return b.commit(v, "layer") })
	b.stuck(t, second)
	hold.Exec(t, "ROLLBACK")
	for _, done := range []<-chan error{first, second} {
		if err := catalogtest.Soon(t, "upload", done); err != nil {
			t.Fatal(err)
		}
	}
	now := b.row(t, d)
	taken, gone := u, v
	if strings.HasPrefix(now.Key, v.StorageKey) {
		taken, gone = v, u
	}
	want := []string{old.Key, gone.StorageKey + "*"}
	slices.Sort(want)
	if got := b.doomedKeys(t); now.Key != taken.StorageKey+"-1" || now.Lost || !slices.Equal(got, want) {
		t.Errorf("%+v, doomed %q, want %q", now, got, want)
	}
	if !b.Linked(t, "r", d) || !b.Linked(t, "other", d) {
		t.Error("a repository that pushed it doesn't have it")
	}
	b.Owned(t)
}

// An upload meets a check that marks the blob as lost. Whichever comes first, the blob ends
// with one object, and the other object is recorded for deletion; a blob that stays lost is
// whole after another push.
func TestAttackPushMeetsMark(t *testing.T) {
	t.Parallel()
	for what, meet := range map[string]func(t *testing.T, b bundle, hold catalogtest.Session, d oci.Digest, push func(waiting int) <-chan error){
		// The mark isn't committed when the push comes: the push waits, and the blob takes
		// its object.
		"mark first": func(t *testing.T, b bundle, hold catalogtest.Session, d oci.Digest, push func(waiting int) <-chan error) {
			hold.Exec(t, "BEGIN")
			hold.Exec(t, "UPDATE blobs SET lost_at = now() WHERE digest = $1", d.Bytes())
			pushed := push(1)
			hold.Exec(t, "COMMIT")
			if err := catalogtest.Soon(t, "push", pushed); err != nil {
				t.Fatal(err)
			}
		},
		// The push has found the blob whole before the mark is set: the blob doesn't need
		// the push's object.
		"push first": func(t *testing.T, b bundle, hold catalogtest.Session, d oci.Digest, push func(waiting int) <-chan error) {
			hold.Exec(t, "BEGIN")
			hold.Exec(t, "SELECT FROM repository_blobs WHERE blob_digest = $1 FOR UPDATE", d.Bytes())
			pushed := push(1)
			b.lose(t, d)
			hold.Exec(t, "COMMIT")
			if err := catalogtest.Soon(t, "push", pushed); err != nil {
				t.Fatal(err)
			}
			if !b.row(t, d).Lost {
				t.Error("the mark is gone, and the object wasn't taken")
			}
			_, err := b.Blob(t.Context(), "r", d)
			catalogtest.WantCode(t, err, oci.BlobUnknown)
			b.Push(t, "r", "layer")
		},
		// A check finds the object again while the blob is about to take the push's object.
		"found again": func(t *testing.T, b bundle, hold catalogtest.Session, d oci.Digest, push func(waiting int) <-chan error) {
			b.lose(t, d)
			old := b.row(t, d)
			hold.Exec(t, "BEGIN")
			hold.Exec(t, "SELECT FROM blobs WHERE digest = $1 FOR NO KEY UPDATE", d.Bytes())
			pushed := push(1)
			found := catalogtest.Later(func() error { _, err := b.MarkFound(context.Background(), []catalog.Owner{old}); return err })
			b.stuck(t, found)
			hold.Exec(t, "COMMIT")
			for what, done := range map[string]<-chan error{"mark": found, "push": pushed} {
				if err := catalogtest.Soon(t, what, done); err != nil {
					t.Fatal(err)
				}
			}
		},
		// A check finds the object just before the blob would have taken the push's: the
		// blob doesn't need it.
		"found before": func(t *testing.T, b bundle, hold catalogtest.Session, d oci.Digest, push func(waiting int) <-chan error) {
			b.lose(t, d)
			old := b.row(t, d)
			hold.Exec(t, "BEGIN")
			hold.Exec(t, "SELECT FROM blobs WHERE digest = $1 FOR NO KEY UPDATE", d.Bytes())
			found := catalogtest.Later(func() error { _, err := b.MarkFound(context.Background(), []catalog.Owner{old}); return err })
			hold.Blocks(t, b.Session(t), 1)
			pushed := push(2)
			hold.Exec(t, "COMMIT")
			for what, done := range map[string]<-chan error{"mark": found, "push": pushed} {
				if err := catalogtest.Soon(t, what, done); err != nil {
					t.Fatal(err)
				}
			}
			if now := b.row(t, d); now.Key != old.Key {
				t.Errorf("%+v has the object of a push that came after it was found", now)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			d := b.Push(t, "r", "layer")
			old := b.row(t, d)
			hold := b.Session(t)
			u := b.begun(t, "r")
			meet(t, b, hold, d, func(waiting int) <-chan error {
				pushed := catalogtest.Later(func() error { return b.commit(u, "layer") })
				catalogtest.Eventually(t, "the push waits", func() bool { return b.Waiting(t) >= waiting })
				return pushed
			})
			now := b.row(t, d)
			if _, err := b.Blob(t.Context(), "r", d); err != nil || now.Lost {
				t.Errorf("%+v, %v, want it whole", now, err)
			}
			doomed := strings.Join(b.doomedKeys(t), " ")
			for _, key := range []string{old.Key, u.StorageKey} {
				if owned := strings.HasPrefix(now.Key, key); owned == strings.Contains(doomed, key) {
					t.Errorf("%s: the blob has %s, doomed are %s", key, now.Key, doomed)
				}
			}
			b.Owned(t)
		})
	}
}

// A mark doesn't disturb a put that has locked its blobs; a put that comes after the mark is
// refused.
func TestAttackPutMeetsMark(t *testing.T) {
	t.Parallel()
	b := setup(t)
	config, layer := b.Push(t, "r", "config"), b.Push(t, "r", "layer")
	b.Put(t, "r", catalogtest.Image(t, config, nil, nil), "t")
	hold, watch := b.Session(t), b.Session(t)
	hold.Exec(t, "BEGIN")
	hold.Exec(t, "SELECT FROM tags FOR UPDATE")
	payload := catalogtest.Image(t, config, []oci.Digest{layer}, nil)
	put := catalogtest.Later(func() error { _, err := b.TryPut(context.Background(), "r", payload, "t"); return err })
	hold.Blocks(t, watch, 1)
	b.lose(t, layer) // waits for nobody
	hold.Exec(t, "COMMIT")
	if err := catalogtest.Soon(t, "put", put); err != nil {
		t.Fatal(err)
	}
	_, err := b.TryPut(t.Context(), "r", payload, "t2")
	catalogtest.WantCode(t, err, oci.ManifestBlobUnknown)
}

// owners collects what Owners returns.
func (b bundle) owners(t *testing.T, from, to string) []catalog.Owner {
	t.Helper()
	var list []catalog.Owner
	for o, err := range b.Owners(t.Context(), from, to) {
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, o)
	}
	return list
}

// Owners returns all owners in the order of keys, as of one moment, more than a page of
// them.
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
	kinds := map[catalog.OwnerKind]int{}
	keep := 0
	for i, o := range all {
		if i > 0 && all[i-1].Key >= o.Key {
			t.Errorf("%s comes after %s", o.Key, all[i-1].Key)
		}
		kinds[o.Kind]++
		if o.Keep != "" {
			keep++
		}
		if o.Kind == catalog.OwnerBlob && (o.Digest.IsZero() || o.Lost != (o.Size == 7)) {
			t.Errorf("%+v", o)
		}
	}
	if kinds[catalog.OwnerUpload] != 20 || kinds[catalog.OwnerDoomed] != 10 || kinds[catalog.OwnerDoomedUpload] != 10 || keep != 5 {
		t.Errorf("%v, %d keep something", kinds, keep)
	}
	var parts []catalog.Owner
	for _, r := range [][2]string{{"", "1"}, {"1", "a"}, {"a", "f"}, {"f", ""}} {
		parts = append(parts, b.owners(t, r[0], r[1])...)
	}
	if !slices.Equal(parts, all) {
		t.Errorf("%d owners in parts, %d at once", len(parts), len(all))
	}
	// Changes after the first row aren't seen, and a caller may stop early.
	n := 0
	for o, err := range b.Owners(t.Context(), "", "") {
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			b.Exec(t, "DELETE FROM blobs")
		}
		if n++; n == 2000 && o.Key != all[1999].Key {
			t.Errorf("row 2,000 is %s, was %s", o.Key, all[1999].Key)
		}
	}
	if n != len(all) {
		t.Errorf("%d owners, %d at the beginning", n, len(all))
	}
	for range b.Owners(t.Context(), "", "") {
		break
	}
	if got := b.owners(t, "", ""); len(got) != 40 {
		t.Errorf("%d owners after the reader of others stopped", len(got))
	}
}

// Every kind of row owns its objects, and no others.
func TestUnowned(t *testing.T) { catalogtest.AtBoth(t, testUnowned) }

func testUnowned(t *testing.T, dsn string) {
	b := replica(t, dsn)
	d := b.Push(t, "r", "layer")
	ofBlob := b.row(t, d).Key
	upload, doomed, gone := b.begun(t, "r").StorageKey, blob.NewBase(), blob.NewBase()
	kept := doomed + "-4"
	b.Exec(t, "INSERT INTO gc_doomed_objects (storage_key, of_upload, keep) VALUES ($1, true, $2)", doomed, kept)
	b.Exec(t, "INSERT INTO gc_doomed_objects (storage_key) VALUES ($1)", gone+"-1")
	base, _ := blob.UploadOf(ofBlob)
	want := []string{base + "-9", gone + "-2", kept}
	slices.Sort(want)
	got, err := b.Unowned(t.Context(), append([]string{ofBlob, upload + "-0", upload + "-12", doomed + "-0", gone + "-1"}, want...))
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("unowned: %q, %v, want %q", got, err, want)
	}
	got, err = b.UnownedUploads(t.Context(), []string{upload, doomed, gone})
	if err != nil || !slices.Equal(got, []string{gone}) {
		t.Errorf("unowned: %q, %v, want %s", got, err, gone)
	}

	if err := b.DoomUnowned(t.Context(), []blob.Object{{Key: want[0], Size: 5}, {Key: gone + "-1", Size: 9}}, time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := b.DoomUnownedUploads(t.Context(), []string{gone, base}, time.Hour); err != nil {
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
	if got, err := b.Unowned(t.Context(), want[:1]); err != nil || len(got) != 0 {
		t.Errorf("%q has no owner though it is doomed: %v", got, err)
	}
}

// Owners are found by reading the blobs once, however many keys are asked for.
func TestUnownedReadsBlobsOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Exec(t, `INSERT INTO blobs (digest, size, storage_key)
		SELECT '\x01' || sha256(i::text::bytea), i, md5(i::text) || '-0' FROM generate_series(1, 20000) i`)
	b.Exec(t, "ANALYZE blobs")
	keys := make([]string, 20_000)
	for i := range keys {
		keys[i] = blob.NewBase() + "-0"
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // 20,000 times 20,000 comparisons take longer
	defer cancel()
	got, err := b.Unowned(ctx, keys)
	if err != nil || len(got) != len(keys) {
		t.Fatalf("%d unowned, %v", len(got), err)
	}
	if err := b.DoomUnownedUploads(ctx, slices.Collect(bases(keys)), 0); err != nil {
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
