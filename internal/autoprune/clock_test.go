package autoprune_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/autoprune/autoprunetest"
	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/clock"
	"github.com/purser-registry/purser/internal/worker"
)

// doubted is a clock of which a test says when it is in doubt.
type doubted struct {
	check error
	at    int // the number of the time that is in doubt; 0: none
	times []time.Time
}

func (d *doubted) Check(context.Context) error { return d.check }

func (d *doubted) CheckTime(_ context.Context, now time.Time) error {
	if d.times = append(d.times, now); len(d.times) == d.at {
		return fmt.Errorf("set meanwhile: %w", worker.ErrRest)
	}
	return nil
}

// TestWrongClock: while clocks disagree no tag is deleted and no run begins. If the clock is set
// during a run, the run deletes nothing of what it would judge by it, and goes on when it may.
func TestWrongClock(t *testing.T) {
	t.Parallel()
	texts := map[string]string{
		"by age":  `{"method": "creation_date", "olderThan": "1d"}`,
		"by cap":  `{"method": "creation_date", "olderThan": "1d", "maxDeleted": 100}`,
		"by rank": `{"method": "number_of_tags", "numTags": 1}`,
	}
	// The clock is asked when a repository is judged, or counted, and in each transaction that deletes.
	for i := range 9 {
		name := []string{"by age", "by cap", "by rank"}[i%3]
		policy, at := texts[name], 2+i/3
		t.Run(fmt.Sprintf("%s, asked for the time %d", name, at), func(t *testing.T) {
			t.Parallel()
			c := &doubted{check: worker.ErrRest}
			r := setup(t, func(o *autoprune.Options) { o.Clock = c })
			one, two := r.Repository("app/one"), r.Repository("app/two")
			for i := range 3 {
				r.Tag(one, fmt.Sprintf("v%d", i), fmt.Sprintf("m%d", i), time.Duration(10+i)*day)
				r.Tag(two, fmt.Sprintf("v%d", i), fmt.Sprintf("m%d", i), time.Duration(10+i)*day)
			}
			r.policy(policies.Target{Namespace: "app"}, policy)
			works := func(want error) {
				t.Helper()
				if _, err := r.pruner.Work(t.Context()); !errors.Is(err, want) {
					t.Errorf("it worked with %v, want %v", err, want)
				}
			}
			works(worker.ErrRest)
			if n := autoprunetest.Value[int](r.Registry, "SELECT count(*) FROM autopruneruns"); n != 0 || len(c.times) != 0 {
				t.Errorf("%d runs began", n)
			}
			c.check, c.at = nil, at
			works(worker.ErrRest)
			if n := len(r.Tags(two)); n != 3 {
				t.Errorf("%d tags are left in the repository that was judged by a wrong clock", n)
			}
			if state := autoprunetest.Value[string](r.Registry, "SELECT state FROM autopruneruns"); state != "running" {
				t.Errorf("the run is in the state %s", state)
			}
			works(nil)
			left := map[bool]int{true: 1, false: 0}[name == "by rank"]
			if a, b := len(r.Tags(one)), len(r.Tags(two)); a != left || b != left {
				t.Errorf("%d and %d tags are left, want %d", a, b, left)
			}
			if n := autoprunetest.Value[int](r.Registry, "SELECT count(*) FROM autopruneruns WHERE state = 'success' AND deleted = $1", 6-2*left); n != 1 {
				t.Errorf("%d runs have deleted %d tags, want one", n, 6-2*left)
			}
			now := autoprunetest.Value[time.Time](r.Registry, "SELECT now()")
			for _, at := range c.times {
				if d := now.Sub(at); d < 0 || d > time.Hour {
					t.Errorf("a time %v ago was shown to the clock", d)
				}
			}
		})
	}
}

// TestNoticesOfClocks: clocks that begin or end to keep tags from being deleted are told once, and not
// in each round; a doubt, which all processes have, by one of them.
func TestNoticesOfClocks(t *testing.T) {
	t.Parallel()
	n, c, d := new(restNotices), new(doubted), new(doubted)
	r := setup(t, n.take, func(o *autoprune.Options) { o.Clock = c })
	_, other := r.replica(n.take, func(o *autoprune.Options) { o.Clock = d })
	var want []string
	work := func(own, others error, events ...string) {
		t.Helper()
		c.check, d.check = own, others
		for range 2 {
			for p, check := range map[*autoprune.Pruner]error{r.pruner: own, other: others} {
				if _, err := p.Work(t.Context()); !errors.Is(err, check) {
					t.Errorf("it worked with %v, want %v", err, check)
				}
			}
		}
		want = append(want, events...)
		n.want(t, want...)
	}
	const rests, resumed = autoprune.EventRests, autoprune.EventResumed
	doubt := func(text string) error { return &clock.Disagreement{Text: text, Doubt: true} }
	one, two := doubt("it was set"), doubt("it was set again")
	wrong := &clock.Disagreement{Text: "it is 2h ahead"}
	later := &clock.Disagreement{Text: "it is 3h ahead"}
	work(nil, nil)
	work(one, one, rests)
	if text := n.last().Text; n.last().Policy != nil || text != one.Error() {
		t.Errorf("the notice says %+v", n.last())
	}
	work(two, two, rests)
	work(nil, nil, resumed)
	work(wrong, nil, rests)
	work(later, nil)
	work(nil, nil, resumed)
	work(wrong, one, rests, rests)
	work(one, one)
	work(errors.New("no connection"), one)
	_, r.pruner = r.replica(n.take, func(o *autoprune.Options) { o.Clock = c }) // it starts anew
	work(one, one)
	work(nil, nil, resumed)
}
