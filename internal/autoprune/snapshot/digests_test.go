package snapshot_test

import (
	"slices"
	"testing"

	"github.com/purser-registry/purser/internal/autoprune/autoprunetest"
	"github.com/purser-registry/purser/internal/autoprune/snapshot"
	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/oci"
)

func TestDigestsBelow(t *testing.T) {
	catalogtest.AtBoth(t, func(t *testing.T, dsn string) {
		r := autoprunetest.In(t, dsn)
		a := r.Repository("app/a")
		r.Index(a, "middle", "leaf")
		r.Index(a, "top", "middle", "leaf", "other")
		r.Index(a, "leaf", "middle") // a cycle, which only a manipulated database can have
		id := func(name string) int64 { return r.Manifest(a, name, "") }
		got, err := snapshot.DigestsBelow(t.Context(), r.DB, a.ID, []int64{id("top"), id("other"), id("leaf"), 999_999})
		if err != nil || len(got) != 3 {
			t.Fatalf("%v, %v", got, err)
		}
		for root, names := range map[string][]string{
			"top": {"top", "middle", "leaf", "other"}, "other": {"other"}, "leaf": {"leaf", "middle"},
		} {
			var want []oci.Digest
			for _, name := range names {
				want = append(want, autoprunetest.DigestOf(name))
			}
			list := got[id(root)]
			for _, l := range [][]oci.Digest{list, want} {
				slices.SortFunc(l, func(a, b oci.Digest) int { return slices.Compare(a.Bytes(), b.Bytes()) })
			}
			if !slices.Equal(list, want) {
				t.Errorf("below %s: %v, want %v", root, list, want)
			}
		}
		if got, err := snapshot.DigestsBelow(t.Context(), r.DB, a.ID+1, []int64{id("top")}); err != nil || len(got) > 0 {
			t.Errorf("a repository that isn't there: %v, %v", got, err)
		}
	})
}
