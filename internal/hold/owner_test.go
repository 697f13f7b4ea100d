package hold_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/hold"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/worker"
)

// account makes an account and returns it as a reader, who may end no holds.
func (b *bundle) account(t *testing.T, name string) hold.By {
	t.Helper()
	return hold.By{ID: b.number(t, "INSERT INTO accounts (name, kind) VALUES ($1, 'user') RETURNING id", name), Name: name}
}

func (b *bundle) refused(t *testing.T, p hold.Place, r hold.Report, code oci.Code) {
	t.Helper()
	if done, err := b.Report(t.Context(), p, r); oci.CodeOf(err) != code {
		t.Errorf("a report of %s by %q: %+v %v, want %s", p, r.By.Name, done, err, code)
	}
}

// held says which of the digests below n are held in acme.
func (b *bundle) held(t *testing.T, n int) (list []int) {
	t.Helper()
	for i := range n {
		of, err := b.OfDigest(t.Context(), "acme", digest(i))
		if err != nil {
			t.Fatal(err)
		}
		if len(of) > 0 {
			list = append(list, i)
		}
	}
	return list
}

// TestOwner: nobody but its account reports for a reporter, except who may delete. A maintainer's
// report leaves it with its account, unless that is gone.
func TestOwner(t *testing.T) {
	t.Parallel()
	b := setup(t)
	robot, other, boss := b.account(t, "robot"), b.account(t, "other"), b.account(t, "boss")
	boss.MayEnd = true
	list := items(0, 3, "")
	b.report(t, acme, hold.Report{Full: true, Items: list, By: robot})
	for _, r := range []hold.Report{{Full: true}, {}, {Items: list}, {Remove: []oci.Digest{digest(0)}}, {Full: true, Items: list, Lease: time.Minute}} {
		r.By = other
		b.refused(t, acme, r, oci.Denied)
		r.By = hold.By{} // nobody
		b.refused(t, acme, r, oci.Denied)
	}
	if got := b.held(t, 3); len(got) != 3 {
		t.Errorf("held after reports by others: %v", got)
	}
	if got := b.report(t, acme, hold.Report{Remove: []oci.Digest{digest(1), digest(2)}, By: boss}); got.Digests != 1 || got.Removed != 2 || len(b.held(t, 3)) != 1 {
		t.Errorf("a maintainer's report: %+v", got)
	}
	b.report(t, acme, hold.Report{By: robot})
	if r, err := b.Get(t.Context(), acme); err != nil || r.Owner != "robot" {
		t.Errorf("%+v %v", r, err)
	}
	b.exec(t, "DELETE FROM accounts WHERE name = 'robot'")
	b.refused(t, acme, hold.Report{By: b.account(t, "robot")}, oci.Denied) // another account of the same name
	b.report(t, acme, hold.Report{By: boss})
	if r, err := b.Get(t.Context(), acme); err != nil || r.Owner != "boss" {
		t.Errorf("%+v %v", r, err)
	}
}

// TestEndingHolds: an account that may not delete can't end holds before the lease that they had,
// neither by leaving them out nor by a shorter lease. One that may ends them at once by saying so, and
// by leaving them out as little as the others.
func TestEndingHolds(t *testing.T) {
	t.Parallel()
	b := setup(t, func(o *hold.Options) { o.MaxDigests = 4 })
	robot := b.account(t, "robot")
	first := b.report(t, acme, hold.Report{Full: true, Items: items(0, 4, ""), Lease: time.Hour, By: robot})
	got := b.report(t, acme, hold.Report{Full: true, AllowEmpty: true, Lease: time.Minute, By: robot})
	if got.Digests != 0 || got.Removed != 0 || got.Ending != 4 || got.Expires.Before(first.Expires) || len(b.held(t, 4)) != 4 {
		t.Errorf("an empty list: %+v, held %v", got, b.held(t, 4))
	}
	got = b.report(t, acme, hold.Report{Items: items(0, 1, ""), Lease: 2 * time.Hour, By: robot})
	if got.Digests != 1 || got.Added != 1 || got.Ending != 3 {
		t.Errorf("one of them again: %+v", got)
	}
	got = b.report(t, acme, hold.Report{Remove: []oci.Digest{digest(0)}, By: robot})
	if got.Removed != 0 || got.Ending != 4 || len(b.held(t, 4)) != 4 {
		t.Errorf("removed by one who may not delete: %+v, held %v", got, b.held(t, 4))
	}
	b.report(t, acme, hold.Report{Full: true, Items: items(4, 5, ""), By: robot})                   // 4 are ending
	b.refused(t, acme, hold.Report{Full: true, Items: items(5, 6, ""), By: robot}, oci.Unsupported) // 5 would be
	b.exec(t, "UPDATE holds SET ends_at = ends_at - interval '61 min' WHERE ends_at IS NOT NULL")   // 0 ends in 59 minutes
	if held := b.held(t, 5); fmt.Sprint(held) != "[0 4]" {
		t.Errorf("after the first lease, %v are held", held)
	}
	if r, err := b.Get(t.Context(), acme); err != nil || r.State != hold.Live {
		t.Errorf("%+v %v", r, err)
	}
	got = b.report(t, acme, hold.Report{Full: true, Items: items(5, 6, ""), By: robot})
	if got.Ending != 2 || got.Digests != 1 || b.number(t, "SELECT count(*) FROM holds") != 3 {
		t.Errorf("a report after the first lease: %+v", got)
	}
	robot.MayEnd = true
	got = b.report(t, acme, hold.Report{Full: true, Items: items(5, 6, ""), Lease: time.Minute, By: robot})
	if held := b.held(t, 6); fmt.Sprint(held) != "[0 4 5]" || got.Removed != 0 || time.Until(got.Expires) < time.Hour {
		t.Errorf("left out by one who may delete: %+v, held %v", got, held)
	}
	got = b.report(t, acme, hold.Report{Items: items(5, 6, ""), Remove: []oci.Digest{digest(0), digest(4)}, Lease: time.Minute, By: robot})
	if held := b.held(t, 6); fmt.Sprint(held) != "[5]" || got.Removed != 2 || time.Until(got.Expires) > 2*time.Minute {
		t.Errorf("removed by one who may delete: %+v, held %v", got, held)
	}
}

// TestEndingWhileNobodyTrustsTheClock: by a clock that is ahead and in doubt, or that nobody has looked at
// since the registry was stopped, leases look over. A report ends nothing by it, and what it leaves out is
// held for the rest of the lease when the clock is right again.
func TestEndingWhileNobodyTrustsTheClock(t *testing.T) {
	t.Parallel()
	for name, clock := range map[string]string{
		"in doubt":     "INSERT INTO clock (seen_at, boot, up, doubt, trusted_at) VALUES (now(), '', 0, 'it was set', now())",
		"after a stop": "INSERT INTO clock (seen_at, boot, up, trusted_at) VALUES (now() - interval '2 h', '', 0, now() - interval '2 h')",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			robot := b.account(t, "robot")
			b.report(t, acme, hold.Report{Full: true, Items: items(0, 4, ""), Lease: time.Hour, By: robot})
			b.report(t, acme, hold.Report{Full: true, Items: items(0, 3, ""), By: robot}) // 3 is left out
			b.exec(t, clock)
			b.exec(t, "UPDATE holdreporters SET expires_at = expires_at - interval '2 h'") // the clock is two hours ahead
			b.exec(t, "UPDATE holds SET ends_at = ends_at - interval '2 h'")
			b.refused(t, acme, hold.Report{Full: true, By: robot}, oci.Unsupported) // an empty list
			if got := b.report(t, acme, hold.Report{Full: true, Items: items(0, 2, ""), By: robot}); got.Ending != 2 || got.Digests != 2 || got.Removed != 0 {
				t.Errorf("%+v", got)
			}
			b.exec(t, "UPDATE holds SET ends_at = ends_at + interval '2 h'")
			if held := b.held(t, 4); fmt.Sprint(held) != "[0 1 2 3]" {
				t.Errorf("with a right clock, %v are held", held)
			}
			b.exec(t, "UPDATE clock SET doubt = NULL, trusted_at = now()")
			b.exec(t, "UPDATE holds SET ends_at = ends_at - interval '2 h'")
			if got := b.report(t, acme, hold.Report{Full: true, Items: items(0, 2, ""), By: robot}); got.Ending != 0 || b.number(t, "SELECT count(*) FROM holds") != 2 {
				t.Errorf("with a clock that is trusted: %+v", got)
			}
		})
	}
}

// TestPostponedEnds: an absence postpones the ends of what a reporter has left out as it does the lease, for
// each reader, and for reports that leave out more.
func TestPostponedEnds(t *testing.T) {
	t.Parallel()
	b := setup(t)
	robot := b.account(t, "robot")
	b.report(t, acme, hold.Report{Full: true, Items: items(0, 4, ""), Lease: time.Hour, By: robot})
	b.report(t, acme, hold.Report{Full: true, Items: items(0, 3, ""), By: robot}) // 3 is left out
	b.exec(t, "UPDATE holds SET ends_at = ends_at - interval '2 h'")
	listed := func() string {
		t.Helper()
		list, _, err := b.Digests(t.Context(), acme, oci.Digest{}, 10)
		if err != nil {
			t.Fatal(err)
		}
		ends := make([]string, len(list))
		for i, h := range list {
			if h.Ends != nil {
				ends[i] = time.Until(*h.Ends).Round(time.Hour).String()
			}
		}
		slices.Sort(ends)
		return strings.Join(ends, ",")
	}
	if held := b.held(t, 4); fmt.Sprint(held) != "[0 1 2]" || listed() != ",," {
		t.Errorf("after its end, %v are held, listed %q", held, listed())
	}
	b.exec(t, "UPDATE holdreporters SET postponed = '2 h'")
	if held := b.held(t, 4); fmt.Sprint(held) != "[0 1 2 3]" || listed() != ",,,1h0m0s" {
		t.Errorf("after an absence of two hours, %v are held, listed %q", held, listed())
	}
	if got := b.report(t, acme, hold.Report{Full: true, Items: items(0, 2, ""), By: robot}); got.Ending != 2 || got.Digests != 2 {
		t.Errorf("a report after the absence: %+v", got)
	}
	if listed() != ",,1h0m0s,1h0m0s" {
		t.Errorf("listed %q", listed())
	}
}

// TestEmptyList: an empty list of a reporter that holds something is refused unless the report
// allows it. One that holds nothing may always be empty.
func TestEmptyList(t *testing.T) {
	t.Parallel()
	b := setup(t)
	boss := b.account(t, "boss")
	boss.MayEnd = true
	empty := hold.Report{Full: true, By: boss}
	b.report(t, acme, empty)
	b.report(t, acme, hold.Report{Full: true, Items: items(0, 2, ""), By: boss})
	b.refused(t, acme, empty, oci.Unsupported)
	if held := b.held(t, 2); len(held) != 2 || b.number(t, "SELECT count(*) FROM holds WHERE ends_at IS NULL") != 2 {
		t.Errorf("after an empty list, %v are held", held)
	}
	empty.AllowEmpty = true
	if got := b.report(t, acme, empty); got.Digests != 0 || got.Ending != 2 || len(b.held(t, 2)) != 2 {
		t.Errorf("an empty list that is allowed: %+v", got)
	}
	empty.AllowEmpty = false
	b.report(t, acme, empty)
	b.report(t, acme, hold.Report{Full: true, Items: items(0, 2, ""), By: boss})
	b.exec(t, "UPDATE holdreporters SET expires_at = now()")
	b.report(t, acme, empty) // the holds have ended
}

// TestClusters: two clusters, one of which was made from the other's files, report under one name.
// The second is refused, also if it doesn't say which cluster it is, until somebody says that it
// replaces the first. What the first held stays for the rest of its lease.
func TestClusters(t *testing.T) {
	t.Parallel()
	b := setup(t)
	boss := b.account(t, "boss")
	boss.MayEnd = true
	of := func(cluster string, n int) hold.Report {
		return hold.Report{Full: true, Items: items(n, n+1, ""), Cluster: cluster, By: boss}
	}
	b.report(t, acme, of("", 0))
	b.report(t, acme, of("uid-1", 0)) // the first report that says
	for _, cluster := range []string{"uid-2", ""} {
		_, err := b.Report(t.Context(), acme, of(cluster, 1))
		if told, ok := errors.AsType[*oci.Error](err); !ok || told.HTTPStatus() != 409 || !strings.Contains(told.Message, "uid-1") || !strings.Contains(told.Message, cluster) ||
			!strings.Contains(told.Message, "--replace-cluster") {
			t.Errorf("a report of %q: %v", cluster, err)
		}
	}
	b.report(t, acme, of("uid-1", 0))
	replace := of("uid-2", 1)
	replace.ReplaceCluster = true
	b.report(t, acme, replace)
	if held := b.held(t, 2); len(held) != 2 {
		t.Errorf("held after the cluster was replaced: %v", held)
	}
	b.refused(t, acme, of("uid-1", 0), oci.Unsupported)
	b.report(t, acme, of("uid-2", 1))
	if r, err := b.Get(t.Context(), acme); err != nil || r.Cluster != "uid-2" {
		t.Errorf("%+v, %v", r, err)
	}
	b.report(t, hold.Place{Namespace: "acme", Reporter: "second"}, of("uid-1", 0))
}

// TestEndedLease: when a lease is over, its holds have ended for whoever reports next.
func TestEndedLease(t *testing.T) {
	t.Parallel()
	b := setup(t)
	robot := b.account(t, "robot")
	b.report(t, acme, hold.Report{Full: true, Items: items(0, 4, ""), By: robot})
	b.exec(t, "UPDATE holdreporters SET expires_at = now() - interval '1 second'")
	if got := b.report(t, acme, hold.Report{Full: true, Items: items(0, 1, ""), By: robot}); got.Removed != 3 || got.Ending != 0 {
		t.Errorf("%+v", got)
	}
}

// TestPlacesOfAccounts: accounts make reporters at the same time. No account gets more than its
// places, and what one takes leaves the others theirs.
func TestPlacesOfAccounts(t *testing.T) {
	t.Parallel()
	b := setup(t)
	replica, err := hold.New(hold.Options{DB: b.d})
	if err != nil {
		t.Fatal(err)
	}
	greedy, other, late := b.account(t, "greedy"), b.account(t, "other"), b.account(t, "late")
	b.exec(t, `INSERT INTO holdreporters (namespace_id, name, lease, expires_at, owner_id)
		SELECT n.id, 'g' || i, '1 day', now() + interval '1 day', $1 FROM top_level_namespaces n, generate_series(1, 92) i WHERE n.name = 'acme'`, greedy.ID)
	var made [2]atomic.Int64
	var all sync.WaitGroup
	for i := range 32 {
		who, by := i%2, greedy
		if who == 1 {
			by = other
		}
		at := []*hold.Holds{b.Holds, replica}[rand.IntN(2)]
		all.Go(func() {
			_, err := at.Report(t.Context(), hold.Place{Namespace: "acme", Reporter: fmt.Sprint("new", i)}, hold.Report{By: by})
			if told, ok := errors.AsType[*oci.Error](err); err == nil {
				made[who].Add(1)
			} else if !ok || told.HTTPStatus() != 409 {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if made[0].Load() != 8 || made[1].Load() != 16 {
		t.Errorf("one account got %d places of 8, the other %d of 16", made[0].Load(), made[1].Load())
	}
	if n := b.number(t, "SELECT count(*) FROM holdreporters WHERE owner_id = $1", greedy.ID); n != 100 {
		t.Errorf("the account has %d reporters", n)
	}
	b.exec(t, `INSERT INTO holdreporters (namespace_id, name, lease, expires_at, owner_id)
		SELECT n.id, 'x' || i, '1 day', now() + interval '1 day', -i / 100 - 1 FROM top_level_namespaces n, generate_series(1, 900) i WHERE n.name = 'acme'`)
	b.refused(t, hold.Place{Namespace: "acme", Reporter: "more"}, hold.Report{By: other}, oci.Unsupported)
	b.report(t, hold.Place{Namespace: "acme", Reporter: "more"}, hold.Report{By: late})
	b.report(t, hold.Place{Namespace: "other", Reporter: "more"}, hold.Report{By: greedy})
}

// TestWrongClock: while the clock is in doubt, the watcher deletes no reporter that seems to have
// ended long ago. When the clock is set back, its holds are in force again.
func TestWrongClock(t *testing.T) {
	t.Parallel()
	why := worker.ErrRest
	b := setup(t, func(o *hold.Options) { o.MayDelete = func(context.Context) error { return why } })
	b.report(t, hold.Place{Reporter: "prod"}, hold.Report{Full: true, Items: []hold.Item{{Digest: digest(1)}}})
	const shift = "UPDATE holdreporters SET reported_at = reported_at + $1::interval, expires_at = expires_at + $1::interval"
	watch := func(reporters, holds int64) {
		t.Helper()
		for range 3 {
			if _, err := b.Watch(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if r, n := b.number(t, "SELECT count(*) FROM holdreporters"), b.number(t, "SELECT count(*) FROM holds"); r != reporters || n != holds {
			t.Errorf("%d reporters and %d holds, want %d and %d", r, n, reporters, holds)
		}
	}
	b.exec(t, shift, "-60 days") // as if the clock was 60 days ahead
	watch(1, 1)
	why = errors.New("nobody can tell")
	if _, err := b.Watch(t.Context()); !errors.Is(err, why) {
		t.Errorf("the watcher goes on without knowing the clocks: %v", err)
	}
	b.exec(t, shift, "60 days")
	why = nil
	watch(1, 1)
	b.exec(t, shift, "-60 days") // time has passed
	watch(0, 0)
}
