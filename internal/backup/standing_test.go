package backup

import (
	"errors"
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
