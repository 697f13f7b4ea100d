package hold_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/hold"
	"github.com/purser-registry/purser/internal/limit"
	"github.com/purser-registry/purser/internal/oci"
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

// long returns a digest that was found by ten names of 100 bytes each.
func long(n int) hold.Item {
	names := make([]string, 10)
	for i := range names {
		names[i] = fmt.Sprintf("%0*d", 100, 10*n+i)
	}
	return named(n, names...)
}

// refusedFor sends a report, and checks that it is refused for its names' length.
func (b *bundle) refusedFor(ctx context.Context, t *testing.T, r hold.Report) {
	t.Helper()
	r.By.MayEnd = true
	_, err := b.Report(ctx, acme, r)
	if e, ok := errors.AsType[*oci.Error](err); !ok || e.HTTPStatus() != http.StatusRequestEntityTooLarge || !strings.Contains(err.Error(), "of which there may be 5120") {
		t.Errorf("%v, want that the names are too long", err)
	}
}

// fiftyNames gives each hold fifty names of 1,000 bytes.
const fiftyNames = "UPDATE holds SET names = ARRAY(SELECT lpad(i::text, 1000, 'n') FROM generate_series(1, 50) i)"

const namesBytes = "SELECT COALESCE(sum(octet_length(array_to_string(names, ''))), 0) FROM holds"

// TestNamesHaveABound: differences, each of which adds names, make the names of a reporter no longer
// than they may be. What is left out takes no room.
func TestNamesHaveABound(t *testing.T) {
	t.Parallel()
	b := setup(t, func(o *hold.Options) { o.MaxDigests = 10 })
	for i := range 5 {
		b.report(t, acme, hold.Report{Items: []hold.Item{long(i)}})
	}
	before := b.number(t, namesBytes)
	b.refusedFor(t.Context(), t, hold.Report{Items: []hold.Item{long(5)}})
	b.refusedFor(t.Context(), t, hold.Report{Items: []hold.Item{named(0, long(6).Names...)}})
	if n := b.number(t, namesBytes); n != before || n != 5000 {
		t.Errorf("the names have %d bytes after reports that were refused, and had %d", n, before)
	}
	b.report(t, acme, hold.Report{Items: []hold.Item{named(5), named(0, "short")}})
	b.report(t, acme, hold.Report{Full: true, Items: []hold.Item{long(5), long(6), long(7), long(8), long(9)}})
	if n := b.number(t, namesBytes); n != 5000 {
		t.Errorf("the names have %d bytes, want those of the new list", n)
	}
}

// TestNamesAreListed: the list of a reporter's digests has some names of each, and not the one that stands for any.
func TestNamesAreListed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.report(t, acme, hold.Report{Full: true, Items: []hold.Item{named(0, "g", "f", "e", "d", "c", "b", "a"), named(1, hold.AnyName), named(2)}, Lease: time.Hour})
	list, _, err := b.Digests(t.Context(), acme, oci.Digest{}, 10)
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[oci.Digest]string)
	for _, h := range list {
		got[h.Digest] = strings.Join(h.Names, "")
	}
	if want := map[oci.Digest]string{digest(0): "abcde", digest(1): "", digest(2): ""}; !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestNamesThatAreTooLong: the names of a reporter are longer than they may be, from before there was a
// bound. Reports that add nothing to them are taken, and shorten them.
func TestNamesThatAreTooLong(t *testing.T) {
	t.Parallel()
	b := setup(t, func(o *hold.Options) { o.MaxDigests = 10 })
	b.report(t, acme, hold.Report{Full: true, Items: items(0, 10, "a")})
	b.exec(t, fiftyNames)
	b.refusedFor(t.Context(), t, hold.Report{Items: []hold.Item{named(0, "more")}})
	b.report(t, acme, hold.Report{})
	b.report(t, acme, hold.Report{Remove: []oci.Digest{digest(9)}})
	b.refusedFor(t.Context(), t, hold.Report{Items: []hold.Item{named(0, "more")}})
	if n := b.number(t, namesBytes); n != 9*50_000 {
		t.Errorf("the names have %d bytes, want nine digests' of 50,000", n)
	}
	b.report(t, acme, hold.Report{Full: true, Items: []hold.Item{named(0, "one"), named(1)}})
	if n := b.number(t, namesBytes); n != 3 {
		t.Errorf("the names have %d bytes after a whole list, want 3", n)
	}
	b.report(t, acme, hold.Report{Items: []hold.Item{named(0, "more")}})
}

// TestMemoryOfNames: a report takes memory for the names that it touches, and only for those.
func TestMemoryOfNames(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.report(t, acme, hold.Report{Full: true, Items: items(0, 100, "a")})
	b.exec(t, fiftyNames)
	const digests, one = 100 * 256, 50 * 1024
	for name, c := range map[string]struct {
		report hold.Report
		want   int64
	}{
		"nothing":             {hold.Report{}, digests},
		"a new digest":        {hold.Report{Items: items(100, 101, "")}, digests},
		"a digest":            {hold.Report{Items: items(0, 1, "a")}, digests + one},
		"a digest is removed": {hold.Report{Remove: []oci.Digest{digest(1)}}, digests},
		"a whole list":        {hold.Report{Full: true, Items: items(0, 100, "a"), Unresolved: []hold.Unresolved{{Name: "x"}}}, digests},
		"another reporter":    {hold.Report{Items: items(0, 1, "a")}, 0},
	} {
		lease := limit.NewBudget(limit.BudgetOptions{Total: 1 << 30}).Lease("client")
		place := acme
		if name == "another reporter" {
			place.Reporter = "other"
		}
		// A base that the reporter doesn't have: the report changes nothing, but is read.
		none := int64(-1)
		c.report.Base, c.report.By = &none, hold.By{MayEnd: true}
		if _, err := b.Report(limit.WithLease(t.Context(), lease), place, c.report); oci.CodeOf(err) != oci.Unsupported {
			t.Errorf("%s: %v", name, err)
		}
		if n := lease.Held(); n != c.want {
			t.Errorf("%s: %d bytes of memory were taken, want %d", name, n, c.want)
		}
	}
	lease := limit.NewBudget(limit.BudgetOptions{Total: 1 << 20}).Lease("client")
	other := limit.WithLease(t.Context(), lease)
	if _, err := lease.Take(other, 1<<19); err != nil {
		t.Fatal(err)
	}
	_, err := b.Report(other, acme, hold.Report{Items: items(0, 1, "a")})
	if _, full := errors.AsType[*limit.FullError](err); !full {
		t.Errorf("without memory: %v", err)
	}
}
