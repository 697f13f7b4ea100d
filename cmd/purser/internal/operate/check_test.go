package operate

import (
	"strings"
	"testing"
	"time"

	storecheck "github.com/purser-registry/purser/internal/check"
	"github.com/purser-registry/purser/internal/oci"
)

// The check's output explains every kind of problem, repaired or not, and says what to do
// about it.
func TestCheckExplainsEveryProblem(t *testing.T) {
	t.Parallel()
	for _, p := range storecheck.Problems {
		for _, repaired := range []int64{0, 3} {
			if repaired > 0 && advice[p].done == "" {
				continue // no repair exists for it
			}
			var b strings.Builder
			r := storecheck.CheckReport{Took: time.Second, Problems: map[storecheck.Problem]*storecheck.Tally{p: {Count: 3, Bytes: 3 << 20, Repaired: repaired}}}
			examples := map[storecheck.Problem][]storecheck.Finding{p: {{Problem: p, Key: "the-key", Size: 1 << 20, Detail: "why"}}}
			if err := writeCheck(&b, storecheck.Options{}, r, examples, true); err != nil {
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
			if strings.Contains(strings.ToLower(text), "all is well") != p.Note() {
				t.Errorf("%s: whether all is well:\n%s", p, text)
			}
		}
	}
}

// TestCheckNotesDeclaredSizes: a manifest declares a wrong size of a blob. If the check
// finds no other problem, its output must say that nothing remains to be done.
func TestCheckNotesDeclaredSizes(t *testing.T) {
	t.Parallel()
	for _, other := range []storecheck.Problem{"", storecheck.Unowned} {
		r := storecheck.CheckReport{UnreadableManifests: 2, Problems: map[storecheck.Problem]*storecheck.Tally{storecheck.DeclaredSize: {Count: 1}}}
		if other != "" {
			r.Problems[other] = &storecheck.Tally{Count: 1}
		}
		examples := map[storecheck.Problem][]storecheck.Finding{storecheck.DeclaredSize: {{
			Problem: storecheck.DeclaredSize, Digest: oci.Compute(oci.SHA256, nil), Repositories: []string{"team/app"}, Detail: "layers[0] has 9 bytes",
		}}}
		var b strings.Builder
		if err := writeCheck(&b, storecheck.Options{}, r, examples, true); err != nil {
			t.Fatal(err)
		}
		text := b.String()
		for _, want := range []string{"1 manifest declaring", "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  in team/app  (layers[0] has 9 bytes)\n", "note", "2 manifests"} {
			if !strings.Contains(text, want) {
				t.Errorf("nothing of %q:\n%s", want, text)
			}
		}
		if well := strings.Contains(text, "Otherwise all is well"); well != (other == "") || r.Remaining() != (other != "") {
			t.Errorf("all is well: %v, remaining: %v:\n%s", well, r.Remaining(), text)
		}
	}
}
