package autoprune_test

import (
	"slices"
	"testing"

	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
)

func TestDigestsBelow(t *testing.T) {
	catalogtest.AtBoth(t, func(t *testing.T, dsn string) {
		r := &registry{t: t, dsn: dsn, db: dbtest.Open(t, dsn)}
		r.catalog, r.pruner = r.replica()
		a := r.repository("app/a")
		r.index(a, "middle", "leaf")
		r.index(a, "top", "middle", "leaf", "other")
		r.index(a, "leaf", "middle") // a cycle, which only a manipulated database can have
		id := func(name string) int64 { return r.manifest(a, name, "") }
		got, err := autoprune.DigestsBelow(t.Context(), r.db, a.ID, []int64{id("top"), id("other"), id("leaf"), 999_999})
		if err != nil || len(got) != 3 {
			t.Fatalf("%v, %v", got, err)
		}
		for root, names := range map[string][]string{
			"top": {"top", "middle", "leaf", "other"}, "other": {"other"}, "leaf": {"leaf", "middle"},
		} {
			var want []oci.Digest
			for _, name := range names {
				want = append(want, digestOf(name))
			}
			list := got[id(root)]
			for _, l := range [][]oci.Digest{list, want} {
				slices.SortFunc(l, func(a, b oci.Digest) int { return slices.Compare(a.Bytes(), b.Bytes()) })
			}
			if !slices.Equal(list, want) {
				t.Errorf("below %s: %v, want %v", root, list, want)
			}
		}
		if got, err := autoprune.DigestsBelow(t.Context(), r.db, a.ID+1, []int64{id("top")}); err != nil || len(got) > 0 {
			t.Errorf("a repository that isn't there: %v, %v", got, err)
		}
	})
}
