package hold_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/hold"
)

// named is a digest that was found by names.
func named(n int, names ...string) hold.Item { return hold.Item{Digest: digest(n), Names: names} }

// TestUnresolved: what was held under a name stays held, with the lease, while this name can't be
// resolved, report after report; what was held under other names doesn't. The reporter says how many
// images are unresolved.
func TestUnresolved(t *testing.T) {
	t.Parallel()
	b := setup(t)
	many := make([]string, 101)
	for i := range many {
		many[i] = fmt.Sprintf("m:%03d", i)
	}
	b.report(t, acme, hold.Report{Full: true, Items: []hold.Item{
		named(0, "a:v1"), named(1, "b:v1"), named(2, "b:v1", "a:v1"), named(3), named(4, many...), named(5, "c:v1"), named(5, "a:v1"),
	}})
	lost := hold.Report{Full: true, Items: []hold.Item{named(6, "b:v1")}, Unresolved: []hold.Unresolved{{Name: "a:v1", UsedBy: "pod x", Reason: "denied"}}}
	for range 2 {
		done := b.report(t, acme, lost)
		if done.Kept != 4 || done.Unresolved != 1 || done.Digests != 5 {
			t.Errorf("a report with an unresolved image: %+v", done)
		}
	}
	live := func() (list []int) {
		for i := range 8 {
			if b.number(t, "SELECT count(*) FROM holds WHERE digest = $1 AND ends_at IS NULL", digest(i).Bytes()) > 0 {
				list = append(list, i)
			}
		}
		return list
	}
	if got := fmt.Sprint(live()); got != "[0 2 4 5 6]" {
		t.Errorf("held with the lease: %s", got)
	}
	r, err := b.Get(t.Context(), acme)
	if err != nil || r.Unresolved != 1 || fmt.Sprint(r.UnresolvedFirst) != "[a:v1, used by pod x: denied]" {
		t.Errorf("%+v, %v", r, err)
	}
	// a:v1 names digest 6 too, and b:v1 is lost: digest 6 keeps this name.
	b.report(t, acme, hold.Report{Full: true, Items: []hold.Item{named(6, "a:v1")}, Unresolved: []hold.Unresolved{{Name: "b:v1"}}})
	done := b.report(t, acme, hold.Report{Full: true, Items: []hold.Item{named(7, "a:v1")}, Unresolved: []hold.Unresolved{{Name: "b:v1"}}})
	if got := fmt.Sprint(live()); got != "[2 4 6 7]" {
		t.Errorf("held with the lease: %s (%+v)", got, done)
	}
	b.report(t, acme, hold.Report{Full: true, Items: []hold.Item{named(7, "a:v1")}})
	if got := fmt.Sprint(live()); got != "[7]" {
		t.Errorf("held when all is resolved: %s", got)
	}
	// A difference drops nothing, and adds names.
	b.report(t, acme, hold.Report{Items: []hold.Item{named(7, "b:v1")}, Unresolved: []hold.Unresolved{{Name: "x"}}})
	b.report(t, acme, hold.Report{Full: true, Unresolved: []hold.Unresolved{{Name: "a:v1"}}})
	if got := fmt.Sprint(live()); got != "[7]" {
		t.Errorf("held after a difference: %s", got)
	}
	for _, name := range []string{"", "a\nb", strings.Repeat("a", 1025)} {
		if _, err := b.Report(t.Context(), acme, hold.Report{Full: true, Items: []hold.Item{named(1, name)}}); err == nil {
			t.Errorf("the name %q is accepted", name)
		}
	}
}
