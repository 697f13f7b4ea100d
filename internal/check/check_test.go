package check_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/check"
	"github.com/purser-registry/purser/internal/oci"
)

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
	report := b.finds(check.Options{Deep: true})
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
	report = b.finds(check.Options{}, shallow...)
	if report.Young != 1 || !report.Remaining() || report.HashedBytes != 0 {
		t.Errorf("%+v", report)
	}
	b.finds(check.Options{Deep: true}, append(shallow, "damaged "+flipped.Key)...)
	if n := b.doomed(); n != 4 {
		t.Errorf("%d rows of doomed objects: a check without repair changes nothing", n)
	}

	b.finds(check.Options{Deep: true, Repair: true},
		"missing "+missing.Key+" repaired", "wrong-size "+short.Key+" repaired", "damaged "+flipped.Key+" repaired",
		"unowned "+stray+" repaired", "shared "+shared.Key)
	b.exec("DELETE FROM gc_doomed_objects WHERE storage_key = $1", shared.Key)
	for _, o := range []catalog.StoredBlob{missing, short, flipped} {
		if _, err := b.catalog.Blob(ctx, "team/app", o.Digest); oci.CodeOf(err) != oci.BlobUnknown {
			t.Errorf("%s: %v", o.Digest, err)
		}
	}
	// The blobs are marked as lost. They must stay marked until they are pushed again,
	// however many checks run.
	for _, deep := range []bool{false, true} {
		report = b.finds(check.Options{Repair: true, Deep: deep}, "lost "+missing.Key, "lost "+short.Key, "lost "+flipped.Key)
		if !report.Remaining() {
			t.Error("lost blobs are nothing that is left to be done")
		}
	}
	b.push("missing")
	b.push("shortened")
	b.push("flipped")
	b.finds(check.Options{Deep: true})
	// The sweeper must at once delete the objects of the blobs that were marked as lost and
	// pushed again. It must delete the object without an owner only a day after the repair.
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
	b.finds(check.Options{Deep: true})
}

// The objects of two blobs vanish, and a check with Repair marks the blobs as lost. Then
// the object of the first blob comes back whole, and that of the second blob comes back
// damaged. A repair must make the registry serve the first blob again, and leave the second
// marked, even without Deep.
func TestCheckFindsLostBlobsAgain(t *testing.T) {
	t.Parallel()
	b := setupStore(t)
	back, damaged := b.push("back"), b.push("damaged")
	for _, o := range []catalog.StoredBlob{back, damaged} {
		if err := os.Rename(b.file(o.Key), b.file(o.Key)+".away"); err != nil {
			t.Fatal(err)
		}
	}
	b.finds(check.Options{Repair: true}, "missing "+back.Key+" repaired", "missing "+damaged.Key+" repaired")
	if err := errors.Join(os.Rename(b.file(back.Key)+".away", b.file(back.Key)),
		os.WriteFile(b.file(damaged.Key), []byte("DAMAGED"), 0o600)); err != nil {
		t.Fatal(err)
	}
	b.finds(check.Options{}, "recovered "+back.Key, "lost "+damaged.Key)
	b.finds(check.Options{Repair: true}, "recovered "+back.Key+" repaired", "lost "+damaged.Key)
	if _, err := b.catalog.Blob(t.Context(), "team/app", back.Digest); err != nil {
		t.Error(err)
	}
	b.finds(check.Options{Repair: true}, "lost "+damaged.Key)
}

// Objects of another program are in the store, with names that Purser doesn't make. A check
// must not report them. But if a blob's row names such an object and the object is missing,
// the check must report the blob.
func TestCheckLeavesForeignObjectsAlone(t *testing.T) {
	t.Parallel()
	b := setupStore(t)
	here, gone := b.push("here"), b.push("gone")
	for name, o := range map[string]catalog.StoredBlob{"docker/here/data": here, "docker/gone/data": gone, "!/data": b.push("early")} {
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
	b.finds(check.Options{Deep: true, Repair: true})
	if err := os.Remove(filepath.Join(b.dir, "docker/gone/data")); err != nil {
		t.Fatal(err)
	}
	b.finds(check.Options{Deep: true, Repair: true}, "missing docker/gone/data repaired")
	b.push("gone")
	b.finds(check.Options{Deep: true, Repair: true})
	if n := b.doomed(); n != 0 {
		t.Errorf("%d objects are doomed: what is foreign is not this registry's to delete", n)
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
	b.finds(check.Options{Store: store}, "unowned-upload "+base, "unowned-upload "+stray)
	b.finds(check.Options{Store: store, Repair: true}, "unowned-upload "+base+" repaired", "unowned-upload "+stray+" repaired")
	b.finds(check.Options{Store: store, Repair: true})
	b.exec("UPDATE gc_doomed_objects SET delete_after = now()")
	b.sweep() // must not delete the blob that belongs to the same upload
	b.finds(check.Options{Deep: true})
}

// The store can't be read. A check must not report its objects as missing or wrong.
func TestCheckChangesNothingWhenTheStoreFails(t *testing.T) {
	t.Parallel()
	b := setupStore(t)
	o := b.push("a blob")
	b.findsIncompletely(check.Options{Deep: true, Repair: true, Store: hooked{Store: b.store, read: func(string) bool { return true }}}, "unreadable "+o.Key)
	if err := os.RemoveAll(filepath.Join(b.dir, "objects")); err != nil {
		t.Fatal(err)
	}
	if found, _, err := b.check(check.Options{Repair: true}); err == nil || len(found) != 0 {
		t.Errorf("found %q, %v", found, err)
	}
	now, _, err := b.catalog.StoredBlob(t.Context(), o.Digest)
	if err != nil || now.Lost {
		t.Errorf("%+v, %v", now, err)
	}
}

// A repair uses another registry's database, or another store. It must report its findings
// and repair nothing, unless Force is set.
func TestCheckRefusesToRepairEverything(t *testing.T) {
	t.Parallel()
	const n = 120
	t.Run("another database", func(t *testing.T) {
		t.Parallel()
		b, other := setupStore(t), setupStore(t)
		for i := range n {
			b.old(b.push(fmt.Sprint(i)).Key)
		}
		found, report, err := other.check(check.Options{Repair: true, Store: b.store})
		if !errors.Is(err, check.ErrImplausible) || len(found) != n || report.Problems[check.Unowned].Repaired != 0 || other.doomed() != 0 {
			t.Errorf("%v, %d found, %d doomed", err, len(found), other.doomed())
		}
		if _, _, err := other.check(check.Options{Repair: true, Force: true, Store: b.store}); err != nil || other.doomed() != n {
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
		found, _, err := b.check(check.Options{Repair: true, Store: other.store})
		if !errors.Is(err, check.ErrImplausible) || len(found) != n || lost() != 0 {
			t.Errorf("%v, %d found, %d marked", err, len(found), lost())
		}
		if _, _, err := b.check(check.Options{Repair: true, Force: true, Store: other.store}); err != nil || lost() != n {
			t.Errorf("forced: %v, %d marked", err, lost())
		}
		// With the right store, a repair must remove all lost marks.
		if _, report, err := b.check(check.Options{Repair: true}); err != nil || lost() != 0 || report.Remaining() {
			t.Errorf("%v, %d marked, %+v", err, lost(), report)
		}
	})
}

// A finding must name a repository that has the blob, the last report of progress must have
// the share 1, and a cancelled check must return the context's error.
func TestCheckTells(t *testing.T) {
	t.Parallel()
	b := setupStore(t)
	o := b.push("layer")
	if err := os.Remove(b.file(o.Key)); err != nil {
		t.Fatal(err)
	}
	var found []check.Finding
	var last check.Progress
	_, err := check.Run(t.Context(), check.Options{Catalog: b.catalog, Store: b.store,
		Found: func(f check.Finding) { found = append(found, f) }, Progress: func(p check.Progress) { last = p }})
	if err != nil || len(found) != 1 || found[0].Digest != o.Digest || found[0].Size != 5 || !slices.Equal(found[0].Repositories, []string{"team/app"}) {
		t.Errorf("%+v, %v", found, err)
	}
	if last.Share != 1 || last.Blobs != 1 || last.Findings != 1 {
		t.Errorf("%+v at the end", last)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := check.Run(ctx, check.Options{Catalog: b.catalog, Store: b.store}); !errors.Is(err, context.Canceled) {
		t.Errorf("a check that was stopped: %v", err)
	}
}

func TestCheckRemaining(t *testing.T) {
	t.Parallel()
	for p, want := range map[check.Problem][2]bool{ // found, repaired
		check.Shared: {true, true}, check.Missing: {true, true}, check.WrongSize: {true, true}, check.Damaged: {true, true},
		check.Unreadable: {true, true}, check.Hidden: {true, true}, check.Lost: {true, true}, check.Recovered: {true, false},
		check.Unowned: {true, false}, check.UnownedUpload: {true, false},
	} {
		for i, repaired := range []int64{0, 1} {
			r := check.CheckReport{Problems: map[check.Problem]*check.Tally{p: {Count: 1, Repaired: repaired}}}
			if r.Remaining() != want[i] {
				t.Errorf("%s, %d repaired: remaining is %v", p, repaired, r.Remaining())
			}
		}
		if !slices.Contains(check.Problems, p) {
			t.Errorf("%s isn't listed", p)
		}
	}
	if r := (check.CheckReport{}); r.Remaining() || len(maps.Collect(maps.All(r.Problems))) != 0 {
		t.Error("something remains of nothing")
	}
}
