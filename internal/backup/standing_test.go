package backup

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// The database knows the age of backups and of verifications, and what they have found. What a reading
// of all copies has found stays until somebody has read them again.
func TestStandings(t *testing.T) {
	t.Parallel()
	r, digests, target := backedUp(t)
	place := target.Place()
	standing := func() Standing {
		t.Helper()
		list, err := Standings(t.Context(), r.DB.Pool)
		if err != nil || len(list) != 1 {
			t.Fatalf("%+v, %v", list, err)
		}
		return list[0]
	}
	verify := func(m *Manifest, deep bool) error {
		t.Helper()
		v, found := Verify(t.Context(), VerifyOptions{Target: target, Manifest: m, Deep: deep})
		return RecordVerification(t.Context(), r.DB.Pool, place, m, v, found)
	}
	record := func(m *Manifest, deep bool) {
		t.Helper()
		if err := Record(t.Context(), r.DB.Pool, place, m, deep); err != nil {
			t.Fatal(err)
		}
	}
	if list, err := Standings(t.Context(), r.DB.Pool); err != nil || len(list) != 0 {
		t.Errorf("before the first backup: %+v, %v", list, err)
	}
	first := find(t, target, "")
	record(first, false)
	if s := standing(); s.Place != place || s.Backup != first.ID || !s.Snapshot.Equal(first.Snapshot) || !s.Verified.IsZero() || s.Problem != "" {
		t.Errorf("after a backup: %+v", s)
	}
	if err := verify(first, false); err != nil || !standing().Verified.IsZero() {
		t.Errorf("after a verification that has read no copies: %+v, %v", standing(), err)
	}
	before := time.Now().Add(-time.Minute)
	if err := verify(first, true); err != nil || standing().Verified.Before(before) {
		t.Errorf("after a verification: %+v, %v", standing(), err)
	}
	verified := standing().Verified

	write(t, r.copyOf(target, digests[0]), []byte("content X"))
	second := r.backup(target).Manifest
	for _, c := range []struct {
		what    string
		do      func() error
		problem bool
	}{
		{"an ordinary verification doesn't see it", func() error { return verify(find(t, target, ""), false) }, false},
		{"a deep verification sees it", func() error { return verify(find(t, target, ""), true) }, true},
		{"an ordinary verification doesn't say that it is gone", func() error { return verify(find(t, target, ""), false) }, true},
		{"an ordinary backup neither", func() error { record(r.backup(target).Manifest, false); return nil }, true},
		{"a deep backup does", func() error {
			record(r.backup(target, func(o *Options) { o.Deep = true }).Manifest, true)
			return nil
		}, false},
		{"an object is missing", func() error {
			removeAll(t, r.copyOf(target, digests[0]))
			return verify(find(t, target, ""), false)
		}, true},
		{"the next backup brings it back", func() error { record(r.backup(target).Manifest, false); return nil }, false},
		{"a copy is damaged once more", func() error {
			write(t, r.copyOf(target, digests[0]), []byte("content X"))
			return verify(find(t, target, ""), true)
		}, true},
		{"a deep backup can't make it again", func() error {
			if err := r.store.Delete(t.Context(), []string{r.key(digests[0])}); err != nil {
				return err
			}
			record(r.backup(target, func(o *Options) { o.Deep = true }).Manifest, true)
			return nil
		}, true},
		{"an ordinary backup doesn't say that it is gone then either", func() error { record(r.backup(target).Manifest, false); return nil }, true},
		{"a deep backup of the whole store does", func() error {
			if err := r.store.Put(t.Context(), r.key(digests[0]), int64(len(contents[0])), strings.NewReader(contents[0])); err != nil {
				return err
			}
			record(r.backup(target, func(o *Options) { o.Deep = true }).Manifest, true)
			return nil
		}, false},
		{"the store has lost it", func() error {
			removeAll(t, r.copyOf(target, digests[0]))
			if err := r.store.Delete(t.Context(), []string{r.key(digests[0])}); err != nil {
				return err
			}
			record(r.backup(target).Manifest, false)
			return nil
		}, true},
	} {
		if err := c.do(); err != nil {
			t.Errorf("%s: %v", c.what, err)
		}
		if s := standing(); (s.Problem != "") != c.problem || !s.Verified.Equal(verified) {
			t.Errorf("%s: %+v, want it verified at %v", c.what, s, verified)
		}
	}
	if err := verify(second, false); !errors.Is(err, ErrNotRecorded) {
		t.Errorf("a verification of an older backup: %v", err)
	}
	record(second, false)
	if s := standing(); s.Backup == second.ID {
		t.Errorf("an older backup is recorded as the newest: %+v", s)
	}

	m := find(t, target, "")
	damaged := RecordVerification(t.Context(), r.DB.Pool, place, m, Verification{}, ErrDamaged)
	if s := standing(); damaged != nil || !strings.Contains(s.Problem, ErrDamaged.Error()) {
		t.Errorf("a damaged backup: %+v, %v", s, damaged)
	}
	if err := RecordVerification(t.Context(), r.DB.Pool, place, m, Verification{}, errKilled); err != nil || !strings.Contains(standing().Problem, ErrDamaged.Error()) {
		t.Errorf("a verification that failed for another reason: %+v, %v", standing(), err)
	}
	reference := *m
	reference.Blobs.Which = Reference
	if err := RecordVerification(t.Context(), r.DB.Pool, "by reference", &reference, Verification{}, nil); err != nil {
		t.Error(err)
	}
	list, err := Standings(t.Context(), r.DB.Pool)
	if i := slices.IndexFunc(list, func(s Standing) bool { return s.Place == "by reference" }); err != nil || i < 0 || list[i].Verified.Equal(verified) || list[i].Verified.IsZero() {
		t.Errorf("a backup without copies, all of which was read: %+v, %v", list, err)
	}
	if _, err := r.DB.Pool.Exec(t.Context(), "DELETE FROM backups WHERE place = 'by reference'"); err != nil {
		t.Fatal(err)
	}
	// A problem that the first backup of a place has found by reading all copies stays as well.
	lacking, whole := *m, *m
	lacking.Blobs.Missing, whole.Blobs.Missing = 1, 0
	for _, b := range []*Manifest{&lacking, &whole} {
		if err := Record(t.Context(), r.DB.Pool, "another", b, b == &lacking); err != nil {
			t.Fatal(err)
		}
		list, err := Standings(t.Context(), r.DB.Pool)
		if i := slices.IndexFunc(list, func(s Standing) bool { return s.Place == "another" }); err != nil || i < 0 || list[i].Problem == "" {
			t.Errorf("after a deep backup that lacks an object: %+v, %v", list, err)
		}
	}
	if _, err := r.DB.Pool.Exec(t.Context(), "DELETE FROM backups WHERE place = 'another'"); err != nil {
		t.Fatal(err)
	}
	other := *m
	other.Store = "0d6cf7a3-5f5c-4c62-9a2e-3c1c0a4e1d11"
	if err := RecordVerification(t.Context(), r.DB.Pool, "elsewhere", &other, Verification{}, nil); !errors.Is(err, ErrNotRecorded) {
		t.Errorf("a backup of another registry: %v", err)
	}
	old := *m
	old.Snapshot = m.Snapshot.Add(-31 * 24 * time.Hour)
	if err := Record(t.Context(), r.DB.Pool, "elsewhere", &old, false); err != nil || standing().Place != place {
		t.Errorf("a place that isn't used any more: %+v, %v", standing(), err)
	}
	// The clock was 60 days ahead at a backup. The next backup is recorded all the same.
	future := *m
	future.ID, future.Snapshot = "20990101T000000.000Z", m.Snapshot.Add(60*24*time.Hour)
	for _, b := range []*Manifest{&future, m} {
		record(b, false)
		if s := standing(); s.Backup != b.ID || s.Place != place {
			t.Errorf("after a backup of the future: %+v, want %s", s, b.ID)
		}
	}
}

// The volume with the backups isn't mounted, so that the place is empty or has old backups alone. No backup
// begins a new place there, unless the operator says that the backups are lost.
func TestPlaceIsAway(t *testing.T) {
	t.Parallel()
	r, _, target := backedUp(t)
	place := target.Place()
	first, newest := find(t, target, ""), r.backup(target).Manifest
	if err := Record(t.Context(), r.DB.Pool, place, newest, false); err != nil {
		t.Fatal(err)
	}
	run := func(newPlace bool) (*Manifest, error) {
		t.Helper()
		o := r.options(target)
		o.NewPlace = newPlace
		res, err := Run(t.Context(), o)
		return res.Manifest, err
	}
	rename := func(from, to string) {
		t.Helper()
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(what string, files int) {
		t.Helper()
		if _, err := run(false); !errors.Is(err, ErrNotThere) || !strings.Contains(err.Error(), newest.ID) || !strings.Contains(err.Error(), "--new-place") {
			t.Errorf("%s: %v", what, err)
		}
		if got := filesOf(t, target, ""); len(got) != files {
			t.Errorf("%s: the place has %v", what, got)
		}
		if list, err := Standings(t.Context(), r.DB.Pool); err != nil || len(list) != 1 || list[0].Backup != newest.ID || !list[0].Snapshot.Equal(newest.Snapshot) {
			t.Errorf("%s: the database knows %+v, %v", what, list, err)
		}
	}
	if _, err := run(true); err == nil || !strings.Contains(err.Error(), "leave --new-place out") {
		t.Errorf("a new place where nothing is lost: %v", err)
	}
	rename(place, place+".away")
	refused("no directory", 0)
	if err := os.Mkdir(place, 0o700); err != nil {
		t.Fatal(err)
	}
	refused("an empty directory", 0)
	removeAll(t, place)
	rename(place+".away", place)
	in := func(m *Manifest) string { return filepath.Join(place, backupsDir, m.ID) }
	rename(in(newest), place+".newest")
	refused("an older backup alone", len(filesOf(t, target, "")))
	rename(place+".newest", in(newest))
	if _, err := run(false); err != nil {
		t.Errorf("with the volume: %v", err)
	}
	// A database that was restored knows an old backup, which was deleted since.
	removeAll(t, in(first))
	r.Exec(t, "UPDATE backups SET backup = $1, snapshot_at = $2", first.ID, first.Snapshot)
	if _, err := run(false); err != nil {
		t.Errorf("with newer backups than the database knows: %v", err)
	}
	removeAll(t, place)
	m, err := run(true)
	if err != nil {
		t.Fatal(err)
	}
	if err := Record(t.Context(), r.DB.Pool, place, m, false); err != nil {
		t.Fatal(err)
	}
	if _, err := run(false); err != nil {
		t.Errorf("after the first backup in a new place: %v", err)
	}
}

// That the newest backup isn't there, or has a damaged manifest, is known until the next one that is whole.
// Absence comes before what a reading of all copies has found, which is known again when it ends, until
// somebody reads them again or a backup copies all of them anew.
func TestProblemOfTheNewest(t *testing.T) {
	t.Parallel()
	r, _, target := backedUp(t)
	place, m := target.Place(), find(t, target, "")
	problem := func() string {
		t.Helper()
		list, err := Standings(t.Context(), r.DB.Pool)
		if err != nil || len(list) != 1 {
			t.Fatalf("%+v, %v", list, err)
		}
		return list[0].Problem
	}
	found := func(id string) error { return RecordProblem(t.Context(), r.DB.Pool, place, id, ErrNotThere) }
	if err := found(m.ID); !errors.Is(err, ErrNotRecorded) {
		t.Errorf("of a place that the database doesn't know: %v", err)
	}
	for range 2 {
		if err := Record(t.Context(), r.DB.Pool, place, m, false); err != nil || problem() != "" {
			t.Errorf("a backup: %q, %v", problem(), err)
		}
		if err := found("20200101T000000.000Z"); !errors.Is(err, ErrNotRecorded) || problem() != "" {
			t.Errorf("of another backup: %q, %v", problem(), err)
		}
		if err := found(m.ID); err != nil || problem() != ErrNotThere.Error() {
			t.Errorf("%q, %v", problem(), err)
		}
	}
	if err := RecordVerification(t.Context(), r.DB.Pool, place, m, Verification{Objects: 4, Missing: 1, Deep: true}, nil); err != nil {
		t.Fatal(err)
	}
	deep := problem()
	if err := RecordProblem(t.Context(), r.DB.Pool, place, m.ID, ErrDamaged); err != nil || problem() != deep {
		t.Errorf("a damaged manifest: %q instead of %q, %v", problem(), deep, err)
	}
	verified := func(v Verification) error {
		return RecordVerification(t.Context(), r.DB.Pool, place, m, v, nil)
	}
	recorded := func(copied, missing int64, deep bool) error {
		b := *m
		b.Blobs.Copied, b.Blobs.Missing = copied, missing
		return Record(t.Context(), r.DB.Pool, place, &b, deep)
	}
	again := func() error { return verified(Verification{Objects: 4, Missing: 1, Deep: true}) }
	for _, c := range []struct {
		what string
		do   func() error
		want string
	}{
		{"the place is away", func() error { return found(m.ID) }, ErrNotThere.Error()},
		{"it is there again, and an ordinary backup has copied what is new", func() error { return recorded(1, 0, false) }, damagedOnce},
		{"the place is away again", func() error { return found(m.ID) }, ErrNotThere.Error()},
		{"an ordinary verification has found it", func() error { return verified(Verification{Objects: 4}) }, damagedOnce},
		{"its manifest is damaged, which says less", func() error { return RecordProblem(t.Context(), r.DB.Pool, place, m.ID, ErrDamaged) }, damagedOnce},
		{"a deep backup", func() error { return recorded(0, 0, true) }, ""},
		{"damage once more", again, deep},
		{"away, and then there with a damaged manifest", func() error {
			return errors.Join(found(m.ID), RecordProblem(t.Context(), r.DB.Pool, place, m.ID, ErrDamaged))
		}, ErrDamaged.Error()},
		{"a deep verification", func() error { return verified(Verification{Objects: 4, Deep: true}) }, ""},
		{"damage for the third time", again, deep},
		{"all is lost, and a new place begins", func() error { return errors.Join(found(m.ID), recorded(4, 0, false)) }, ""},
		{"damage for the fourth time", again, deep},
		{"a new place begins without what the store lacks", func() error { return recorded(3, 1, false) }, "it lacks 1 of 4 objects, which the store has lost"},
		{"an ordinary backup copies that too", func() error { return recorded(1, 0, false) }, ""},
	} {
		if err := c.do(); err != nil || problem() != c.want {
			t.Errorf("%s: %q instead of %q, %v", c.what, problem(), c.want, err)
		}
	}
	// A place that the database knows by a deep verification alone was never damaged.
	r.Exec(t, "DELETE FROM backups")
	if err := errors.Join(verified(Verification{Objects: 4, Deep: true}), found(m.ID), recorded(1, 0, false)); err != nil || problem() != "" {
		t.Errorf("a place that was whole: %q, %v", problem(), err)
	}
}

// All backups of a place with damaged copies are lost, and the next one is the first of a new place.
func TestNewPlaceIsWhole(t *testing.T) {
	t.Parallel()
	r, digests, target := backedUp(t)
	place, m := target.Place(), find(t, target, "")
	write(t, r.copyOf(target, digests[0]), []byte("content X"))
	v, err := Verify(t.Context(), VerifyOptions{Target: target, Manifest: m, Deep: true})
	if err := errors.Join(err, RecordVerification(t.Context(), r.DB.Pool, place, m, v, nil)); err != nil || v.Missing != 1 {
		t.Fatalf("%+v, %v", v, err)
	}
	removeAll(t, place)
	_, away := Run(t.Context(), r.options(target))
	if !errors.Is(away, ErrNotThere) {
		t.Fatal(away)
	}
	if err := RecordProblem(t.Context(), r.DB.Pool, place, m.ID, away); err != nil {
		t.Fatal(err)
	}
	wants := func(problem string) {
		t.Helper()
		list, err := Standings(t.Context(), r.DB.Pool)
		if err != nil || len(list) != 1 || !strings.HasPrefix(list[0].Problem, problem) || (problem == "") != (list[0].Problem == "") {
			t.Errorf("the database knows %+v, %v, want %q", list, err, problem)
		}
	}
	wants(ErrNotThere.Error())
	b := r.backup(target, func(o *Options) { o.NewPlace = true })
	if err := Record(t.Context(), r.DB.Pool, place, b.Manifest, false); err != nil {
		t.Fatal(err)
	}
	wants("")
}

// A place is the one that the database knows if it has the newest known backup or a newer one, and nothing
// less: no older one, none that is incomplete, and no other file.
func TestRequireThere(t *testing.T) {
	t.Parallel()
	const known, older, newer = "20261126T175848.900Z", "20261126T175848.899Z", "20261127T000000.000Z"
	for name, c := range map[string]struct {
		files []string
		there bool
	}{
		"no directory":       {},
		"an older one":       {files: []string{older + "/begun", older + "/manifest.json"}},
		"it is incomplete":   {files: []string{known + "/begun"}},
		"an incomplete one":  {files: []string{newer + "/begun", newer + "/main/manifest.json"}},
		"another directory":  {files: []string{"zzz/manifest.json"}},
		"the known one":      {files: []string{known + "/manifest.json", older + "/manifest.json"}, there: true},
		"a newer one":        {files: []string{older + "/manifest.json", newer + "/begun", newer + "/manifest.json"}, there: true},
		"its manifest alone": {files: []string{known + "/manifest.json"}, there: true},
	} {
		target := newTarget(t)
		for _, file := range c.files {
			if err := putBytes(t.Context(), target, backupsDir+file, []byte("x")); err != nil {
				t.Fatal(err)
			}
		}
		err := RequireThere(t.Context(), target, known)
		if (err == nil) != c.there || err != nil && (!errors.Is(err, ErrNotThere) || !strings.Contains(err.Error(), known) || !strings.Contains(err.Error(), target.Place())) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
