package main

import (
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/gc"
)

// Every problem is explained, whether it was repaired or not, with the way out.
func TestCheckExplainsEveryProblem(t *testing.T) {
	t.Parallel()
	for _, p := range gc.Problems {
		for _, repaired := range []int64{0, 3} {
			if repaired > 0 && advice[p].done == "" {
				continue // nothing repairs it
			}
			var b strings.Builder
			r := gc.CheckReport{Took: time.Second, Problems: map[gc.Problem]*gc.Tally{p: {Count: 3, Bytes: 3 << 20, Repaired: repaired}}}
			examples := map[gc.Problem][]gc.Finding{p: {{Problem: p, Key: "the-key", Size: 1 << 20, Detail: "why"}}}
			if err := writeCheck(&b, gc.CheckOptions{}, r, examples, true); err != nil {
				t.Fatal(err)
			}
			text := b.String()
			want := []string{"3 " + things(p) + "s", advice[p].what, "(3.0 MiB)", "the-key", "(why)", "… and 2 more", advice[p].todo}
			if repaired > 0 {
				want[len(want)-1] = advice[p].done
			}
			for _, w := range want {
				if w == "" || !strings.Contains(text, w) {
					t.Errorf("%s, %d repaired: nothing of %q:\n%s", p, repaired, w, text)
				}
			}
			if strings.Contains(text, "All is well") {
				t.Errorf("%s: all is well:\n%s", p, text)
			}
		}
	}
}
