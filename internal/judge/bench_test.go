package judge_test

import (
	"fmt"
	"iter"
	"runtime"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/judge"
)

const million = 1_000_000

// BenchmarkEvaluate evaluates a repository of a million tags and decides about each of
// them. It reports the time per tag, the bytes allocated per tag, and the largest number of
// bytes in use at once per tag, without the tags themselves.
func BenchmarkEvaluate(b *testing.B) {
	for _, bb := range []struct {
		name     string
		policies []string
		signed   bool
	}{
		{"date", []string{"creation_date:2w"}, false},
		{"date with a pattern", []string{"creation_date:2w:pr-[0-9]+"}, false},
		{"newest 100", []string{"number_of_tags:100"}, false},
		{"newest 500000", []string{"number_of_tags:500000"}, false},
		{"four policies", []string{"creation_date:2w:pr-[0-9]+", "number_of_tags:100:!v.*", "last_pulled:90d", "creation_date:1y"}, false},
		{"half are signatures", []string{"creation_date:2w"}, true},
	} {
		b.Run(bb.name, func(b *testing.B) {
			tags := millionTags(bb.signed)
			r := rules(b, bb.policies...)
			r.Protection = protect(b, `v[0-9]+\.[0-9]+`)
			held := heldBytes(b, r, tags)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			gone := 0
			for b.Loop() {
				v := evaluate(b, r, tags)
				gone = 0
				for i := range tags {
					if v.Decide(tags[i]).Delete {
						gone++
					}
				}
			}
			runtime.ReadMemStats(&after)
			if gone == 0 || gone == million {
				b.Fatalf("%d tags go", gone)
			}
			count := float64(b.N) * million
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/count, "ns/tag")
			b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/count, "B/tag")
			b.ReportMetric(held/million, "held-B/tag")
			b.ReportMetric(float64(gone), "gone")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// millionTags returns a million tags that were pushed within the last 100 days, in random
// order. If signed is set, every second tag is a signature of the tag before it.
func millionTags(signed bool) []judge.Tag {
	tags := make([]judge.Tag, 0, million)
	for i := range million {
		created := ago(time.Duration(i*7919%million) * (100 * day / million))
		id := int64(i + 1)
		if signed && i%2 == 1 {
			tags = append(tags, judge.Tag{Name: attachedName(id-1, ".sig"), Created: created, Manifest: id, Image: id - 1})
			continue
		}
		tags = append(tags, judge.Tag{Name: fmt.Sprintf("pr-%d", i), Created: created, Manifest: id})
	}
	return tags
}

// heldBytes returns the largest number of bytes that Evaluate has in use at the end of one
// of its passes over the tags.
func heldBytes(b *testing.B, r judge.Rules, tags []judge.Tag) float64 {
	b.Helper()
	heap := func() uint64 {
		var stats runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&stats)
		return stats.HeapAlloc
	}
	before, most := heap(), uint64(0)
	var pass iter.Seq2[judge.Tag, error] = func(yield func(judge.Tag, error) bool) {
		judge.Tags(tags)(yield)
		most = max(most, heap())
	}
	v, err := judge.Evaluate(r, judge.Repository{Tags: pass})
	if err != nil {
		b.Fatal(err)
	}
	most = max(most, heap())
	runtime.KeepAlive(v)
	return max(0, float64(most)-float64(before))
}
