package autoprune_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/autoprune/autoprunetest"
	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/autoprune/warnings"
	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/policy"
)

// memories stands for the pull statistics and for the processes that record uses: `answered` are
// tags whose uses are in the memory of a process, `known` are those that the statistics have.
type memories struct {
	mu              sync.Mutex
	answered, known map[string]bool
	record          judge.PullRecord
	hung            error                       // Settle returns it
	settled         func()                      // called when all processes have written their uses
	used            func(context.Context) error // called at the end of each call of Used
	settles         int
	hurried         bool // the last call of Settle had a deadline, as that of a judgement has
}

func (m *memories) options(o *autoprune.Options) {
	m.answered, m.known = map[string]bool{}, map[string]bool{}
	m.record = judge.PullRecord{Since: time.Now().Add(-10_000 * day)}
	m.settled, m.used = func() {}, func(context.Context) error { return nil }
	o.Pulls = func(context.Context) (judge.PullRecord, error) { return m.record, nil }
	o.Settle = func(ctx context.Context) error {
		m.mu.Lock()
		defer m.mu.Unlock()
		_, m.hurried = ctx.Deadline()
		if m.settles++; m.hung != nil {
			return m.hung
		}
		maps.Copy(m.known, m.answered)
		m.settled()
		return nil
	}
	o.Used = func(ctx context.Context, _ int64, tags []*judge.Tag) error {
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, one := range tags {
			one.Pulled, one.UseUnknown = time.Time{}, false
			if m.known[one.Name] {
				one.Pulled = time.Now()
			}
		}
		return m.used(ctx)
	}
}

// remembering returns a registry with the tags v1 to v3 of app/a, which weren't used for long as
// far as the statistics know.
func remembering(t *testing.T, policy string) (*registry, *memories, func() []string) {
	m := new(memories)
	r := setup(t, m.options)
	a := r.Repository("app/a")
	for i := range 3 {
		r.Tag(a, fmt.Sprintf("v%d", i+1), fmt.Sprintf("m%d", i+1), 10*day)
	}
	r.policy(policies.Target{Namespace: "app"}, policy)
	return r, m, func() []string { return r.Tags(a) }
}

// A use is in the memory of another process when a run judges the tag. The run must not delete
// the tag, whether a policy by last use or by bytes selects it, or a keep rule keeps it. A preview
// must not say that the run would.
func TestUsesInMemoryKeepTags(t *testing.T) {
	t.Parallel()
	for name, policy := range map[string]string{
		"last_pulled": unused,
		"max_bytes":   `{"method": "max_bytes", "maxBytes": "1"}`,
		"usedWithin":  `{"method": "creation_date", "olderThan": "1d", "keep": [{"usedWithin": "5d"}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, m, tags := remembering(t, policy)
			m.known["v1"], m.known["v3"] = true, true
			m.answered["v2"] = true
			preview, err := r.pruner.Preview(t.Context(), policies.Target{Namespace: "app"}, autoprune.PreviewOptions{})
			r.Must(err)
			for _, g := range preview.Going {
				if g.Tag == "v2" && name != "max_bytes" {
					t.Errorf("a preview says that %+v goes", g)
				}
			}
			if m.settles == 0 {
				t.Error("the preview has waited for no process")
			}
			delete(m.known, "v2")
			r.run()
			if got := tags(); !slices.Contains(got, "v2") {
				t.Errorf("there are %v, want v2 too, which is in use", got)
			}
		})
	}
}

// A process doesn't write its uses. Then tags whose last use matters must stay, and others go. A
// preview must say why.
func TestUnsettledUsesKeepTags(t *testing.T) {
	t.Parallel()
	r, m, tags := remembering(t, unused)
	r.policy(policies.Target{Namespace: "app"}, `{"method": "creation_date", "olderThan": "1d", "tagPattern": "^v3$"}`)
	m.hung = errors.New("the process host 7 hangs")
	r.run()
	if got := tags(); !slices.Equal(got, []string{"v1", "v2"}) || m.settles == 0 {
		t.Errorf("there are %v, want v1 and v2", got)
	}
	preview, err := r.pruner.Preview(t.Context(), policies.Target{Namespace: "app"}, autoprune.PreviewOptions{})
	r.Must(err)
	if len(preview.Going) > 0 || !slices.ContainsFunc(preview.Policies, func(p policies.PreviewPolicy) bool { return strings.Contains(p.Notice, "host 7 hangs") }) {
		t.Errorf("the preview: %+v", preview)
	}
	m.hung = nil
	r.run()
	if got := tags(); len(got) > 0 {
		t.Errorf("there are %v after the process has written its uses, want none", got)
	}
}

// A use becomes known after the run has looked for uses, and before it deletes. The transaction
// that deletes must find the use.
func TestDeletionLooksForUses(t *testing.T) {
	t.Parallel()
	r, m, tags := remembering(t, unused)
	m.settled = func() {
		delete(m.known, "v2") // which an earlier look, that of the judgement, has made known
		looks := 0
		m.used = func(context.Context) error {
			if looks++; looks == 1 {
				m.known["v2"] = true
			}
			return nil
		}
	}
	r.run()
	if got := tags(); !slices.Equal(got, []string{"v2"}) {
		t.Errorf("there are %v, want v2", got)
	}
}

// The statistics' database hangs when the transaction that deletes looks for uses. This transaction
// has locked the repository, so it must give up soon, and the run must look again.
func TestDeletionWaitsLittleForUses(t *testing.T) {
	t.Parallel()
	r, m, tags := remembering(t, unused)
	m.used = func(ctx context.Context) error {
		end, bounded := ctx.Deadline()
		if m.known["v2"] || !bounded || time.Until(end) > autoprune.LookWithin {
			return nil // it isn't the look of that transaction, or a later one
		}
		<-ctx.Done()
		m.known["v2"] = true
		return ctx.Err()
	}
	r.run()
	if got := tags(); !slices.Equal(got, []string{"v2"}) {
		t.Errorf("there are %v, want v2, whose use became known while the database hung", got)
	}
	if n := autoprunetest.Value[int](r.Registry, "SELECT count(*) FROM autopruneruns WHERE state <> 'success'"); n > 0 {
		t.Error("the run has failed")
	}
}

// A worker is stopped after all processes have written their uses, and before it deletes. Meanwhile
// another process has answered a request. The worker must ask the processes again.
func TestSleeperAsksForUsesAgain(t *testing.T) {
	t.Parallel()
	r, m, tags := remembering(t, unused)
	const long = time.Second
	r.pruner.SetLookFor(long)
	slept := false
	m.used = func(context.Context) error {
		if slept || m.settles == 0 || m.hurried {
			return nil // it isn't the look before the deletion
		}
		slept = true
		time.Sleep(long)
		m.answered["v2"] = true
		return nil
	}
	r.run()
	if got := tags(); !slices.Equal(got, []string{"v2"}) || !slept {
		t.Errorf("there are %v, want v2, which was used while the worker slept", got)
	}
}

// While a run waits for processes, one of them turns out to be dead, and may have had uses in
// memory. The run must not go by the state of the statistics from before.
func TestProcessDiesBeforeDeletion(t *testing.T) {
	t.Parallel()
	r, m, tags := remembering(t, unused)
	m.settled = func() { m.record.Since = time.Now() }
	r.run()
	r.run()
	if got := tags(); len(got) != 3 {
		t.Errorf("there are %v, want all three tags", got)
	}
}

// Last uses can't be read, and this process's clock is years behind that of the database. The
// tags must stay.
func TestUnknownUsesByAnotherClock(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *autoprune.Options) {
		o.Pulls = reliable
		o.Used = func(_ context.Context, _ int64, tags []*judge.Tag) error {
			for _, one := range tags {
				one.Pulled, one.UseUnknown = time.Now().Add(-1000*day), true
			}
			return nil
		}
	})
	a := r.Repository("app/a")
	r.Tag(a, "v1", "m1", 10*day)
	r.policy(policies.Target{Namespace: "app"}, unused)
	r.run()
	if got := r.Tags(a); len(got) != 1 {
		t.Errorf("there are %v, want v1", got)
	}
}

// Uses are in the memory of another process when a policy is saved, and when it is judged before its
// first deletion. It isn't warned of selecting most tags, which are in use, and doesn't rest for that.
func TestUsesInMemoryCountAtJudgement(t *testing.T) {
	t.Parallel()
	const text = `{"method": "last_pulled", "olderThan": "1d"}`
	r, m, tags := remembering(t, text)
	m.answered["v1"], m.answered["v2"] = true, true
	p, err := policy.Parse([]byte(text))
	r.Must(err)
	found, err := r.pruner.Warnings.OfChange(t.Context(), policies.Target{Namespace: "app"}, warnings.Change{Policy: &p})
	r.Must(err)
	for _, w := range found {
		if w.Code == policy.SelectsMost {
			t.Errorf("warned: %s", w.Text)
		}
	}
	if m.settles == 0 {
		t.Error("nobody was asked for the uses in memory")
	}
	m.known = map[string]bool{} // as after a restart of the statistics
	m.answered["v1"], m.answered["v2"] = true, true
	r.run()
	if got := tags(); !slices.Equal(got, []string{"v1", "v2"}) {
		t.Errorf("the tags are %v, want v1 and v2", got)
	}
	if list, err := r.pruner.Policies.Rests(t.Context(), "app"); err != nil || len(list) != 0 {
		t.Errorf("these rest: %+v, %v", list, err)
	}
}

// Uses are in the memory of another process when somebody plans to free bytes. The plan must take no
// tag that was used. It must take none at all if that process doesn't write its uses, or has died
// with them.
func TestUsesInMemoryCountInPlans(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(m *memories)
		tags   int64
	}{
		"written": {func(*memories) {}, 2},
		"hangs":   {func(m *memories) { m.hung = errors.New("the process host 7 hangs") }, 0},
		"died":    {func(m *memories) { m.settled = func() { m.record.Since = time.Now() } }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, m, _ := remembering(t, `{"method": "creation_date", "olderThan": "90y"}`)
			a := r.Repository("app/a")
			for i := range 3 {
				r.Layer(a, fmt.Sprintf("m%d", i+1), fmt.Sprintf("layer %d", i+1), 100)
			}
			m.answered["v2"] = true
			test.change(m)
			plan, err := r.pruner.PlanFree(t.Context(), "app", autoprune.FreeOptions{Bytes: 1_000_000, UnusedFor: "2h"})
			r.Must(err)
			if plan.Tags != test.tags {
				t.Errorf("the plan takes %d tags, want %d: %+v", plan.Tags, test.tags, plan)
			}
		})
	}
}
