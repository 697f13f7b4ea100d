package backup

import "testing"

// Old backups are deleted, with the objects that only they need. While another backup in the
// target is incomplete, no objects are deleted.
func TestPrune(t *testing.T) {
	t.Parallel()
	r := setup(t)
	target := newTarget(t)
	a, b := r.push("a", "content a"), r.push("b", "content b")
	first := r.backup(target)
	r.collect(a)
	second := r.backup(target)
	r.collect(b)
	r.push("c", "content c")
	if err := putBytes(t.Context(), target, backupsDir+second.ID[:8]+"T235959.000Z/begun", nil); err != nil {
		t.Fatal(err)
	}
	third := r.backup(target, func(o *Options) { o.Keep = 2 })
	if p := third.Pruned; p.Backups != 1 || !p.Waiting || p.Objects != 0 {
		t.Errorf("beside an incomplete backup: %+v", p)
	}
	if _, err := Find(t.Context(), target, first.ID); err == nil {
		t.Error("the oldest backup is there")
	}
	if err := target.Delete(t.Context(), []string{backupsDir + second.ID[:8] + "T235959.000Z/begun"}); err != nil {
		t.Fatal(err)
	}
	if p := r.backup(target, func(o *Options) { o.Keep = 3 }).Pruned; p.Backups != 0 || p.Objects != 1 || p.Bytes != int64(len("content a")) {
		t.Errorf("the object that only the first backup needs: %+v", p)
	}
	for _, m := range []*Manifest{find(t, target, second.ID), find(t, target, third.ID)} {
		if v, err := Verify(t.Context(), VerifyOptions{Target: target, Manifest: m, Deep: true}); err != nil || v.Missing != 0 {
			t.Errorf("backup %s: %+v, %v", m.ID, v, err)
		}
	}
}
