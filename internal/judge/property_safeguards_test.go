package judge_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/purser-registry/purser/internal/judge"
)

// with returns the scene with a member added to the JSON of policy i.
func (s scene) with(t rapid.TB, i int, member string) scene {
	text, err := s.rules.Policies[i].Policy.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	s.rules.Policies = slices.Clone(s.rules.Policies)
	s.rules.Policies[i].Policy = parsed(t, strings.TrimSuffix(string(text), "}")+", "+member+"}")
	return s
}

// readable draws the index of a policy that can be read; -1 if there is none.
func (s scene) readable(t *rapid.T) int {
	var list []int
	for i, p := range s.rules.Policies {
		if p.Problem == "" {
			list = append(list, i)
		}
	}
	if list == nil {
		return -1
	}
	return rapid.SampledFrom(list).Draw(t, "policy with a safeguard")
}

// notMore fails if a tag goes that didn't go before.
func notMore(t *rapid.T, what string, before, after map[string]judge.PolicySet) {
	for name, by := range after {
		if before[name] == 0 {
			t.Fatalf("%s lets tag %s go, under %b", what, name, by)
		}
	}
}

// TestSafeguardsOnlyTakeAway adds a safeguard to a policy. A window, a grace period and
// neverBelow must never make a tag go that would stay without. A policy that observes or is off
// must have no other effect on what goes than if it didn't exist, except that the keep rules of
// one that observes keep tags.
func TestSafeguardsOnlyTakeAway(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := drawScene(t)
		i := s.readable(t)
		if i < 0 {
			return
		}
		before := s.taken(t)
		hour := s.rules.Now.Hour()
		closed := s.with(t, i, fmt.Sprintf(`"windows": [{"from": "%02d:00", "to": "%02d:00"}]`, (hour+1)%24, (hour+3)%24))
		notMore(t, "a closed window", before, closed.taken(t))
		for name, by := range closed.taken(t) {
			if by.Has(i) {
				t.Fatalf("a policy outside its window deletes %s", name)
			}
		}
		later, past := s.rules.Now.Add(time.Hour), s.rules.Now
		for _, grace := range []judge.Applied{{ActiveFrom: &later, Announced: true}, {ActiveFrom: &later}, {ActiveFrom: &past}, {ActiveFrom: &past, Announced: true}} {
			waits := s.with(t, i, `"grace": "1h"`)
			waits.rules.Policies[i].ActiveFrom, waits.rules.Policies[i].Announced = grace.ActiveFrom, grace.Announced
			switch got := waits.taken(t); {
			case grace.ActiveFrom == &past && grace.Announced:
				same(t, "a grace period that is over", got, before)
			default:
				same(t, "a grace period", got, closed.taken(t))
			}
		}
		asks := s.with(t, i, `"maxDeleted": 1`)
		same(t, "a cap that is enough", asks.taken(t), before)
		asks.rules.Policies[i].Capped = "it asks"
		same(t, "a policy that asks", asks.taken(t), closed.taken(t))
		rests := s.with(t, i, `"requireReporter": ["prod-eu"]`)
		same(t, "a policy whose reporters are live", rests.taken(t), before)
		rests.rules.Policies[i].Unreported = "it rests"
		same(t, "a policy that rests without its reporter", rests.taken(t), closed.taken(t))
		rests.rules.Policies[i].Unreported, rests.rules.Policies[i].Unconfirmed = "", "it rests"
		same(t, "a policy that waits for a confirmation", rests.taken(t), closed.taken(t))
		rests.rules.Policies[i].Unconfirmed, rests.rules.Policies[i].Uncovered = "", s.rules.Now.Add(time.Second)
		same(t, "a policy that waits for what was uncovered", rests.taken(t), closed.taken(t))
		open := s.with(t, i, fmt.Sprintf(`"windows": [{"from": "%02d:00", "to": "%02d:00"}]`, hour, (hour+1)%24))
		if got := open.taken(t); !maps.Equal(got, before) {
			t.Fatalf("with an open window %v goes, and without it %v", got, before)
		}
		number := rapid.IntRange(1, 12).Draw(t, "never below")
		floor := s.with(t, i, fmt.Sprintf(`"neverBelow": %d`, number))
		notMore(t, "neverBelow", before, floor.taken(t))
		floor.atLeast(t, i, number)

		without := s.takenWithout(t, i)
		observe := s.with(t, i, `"mode": "observe"`)
		notMore(t, "a policy that observes", without, observe.taken(t))
		if len(s.rules.Policies[i].Policy.Keep) == 0 {
			same(t, "a policy that observes", observe.taken(t), without)
		}
		same(t, "a policy that is off", s.with(t, i, `"mode": "off"`).taken(t), without)
		observe.rules.Would, closed.rules.Would = true, true
		for _, would := range []scene{observe, closed} {
			if got := would.taken(t); !maps.Equal(got, before) {
				t.Fatalf("%v would go, and %v goes if the policy is on", got, before)
			}
		}
	})
}

func same(t *rapid.T, what string, got, want map[string]judge.PolicySet) {
	if !maps.Equal(got, want) {
		t.Fatalf("with %s, %v goes, and without the policy %v", what, got, want)
	}
}

// takenWithout is like taken if policy i didn't exist; the other policies keep their indexes.
func (s scene) takenWithout(t *rapid.T, i int) map[string]judge.PolicySet {
	below := judge.PolicySet(1)<<i - 1
	s.rules.Policies = slices.Delete(slices.Clone(s.rules.Policies), i, i+1)
	s.tags = slices.Clone(s.tags)
	for at := range s.tags {
		e := s.tags[at].Exempt
		s.tags[at].Exempt = e&below | e>>1&^below
	}
	taken := s.taken(t)
	for name, by := range taken {
		taken[name] = by&below | by&^below<<1
	}
	return taken
}

// atLeast fails if fewer tags stay than policy i allows.
func (s scene) atLeast(t *rapid.T, i, number int) {
	counted := slices.DeleteFunc(slices.Clone(s.tags), func(one judge.Tag) bool {
		return attached(one) || s.rules.Policies[i].Policy.RemoveOrphans && orphan(one)
	})
	slices.SortFunc(counted, newestFirst)
	taken := s.taken(t)
	for _, one := range counted[:min(number, len(counted))] {
		if taken[one.Name] != 0 {
			t.Fatalf("%s is among the newest %d tags and goes", one.Name, number)
		}
	}
}

// TestWaitBegins: a window that closes after tags were judged and before they are
// deleted must stop the deletion.
func TestWaitBegins(t *testing.T) {
	t.Parallel()
	p := parsed(t, `{"method": "number_of_tags", "numTags": 1, "windows": [{"from": "10:00", "to": "11:00"}]}`)
	r := judge.Rules{Policies: []judge.Applied{{Policy: p}}}
	day := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		judged, deleted time.Duration
		want            bool
	}{{10 * time.Hour, 11*time.Hour - 1, false}, {10 * time.Hour, 11 * time.Hour, true}, {9 * time.Hour, 9 * time.Hour, false}, {9 * time.Hour, 10 * time.Hour, false}} {
		r.Now = day.Add(c.judged)
		if got := r.WaitBegun(day.Add(c.deleted)); got != c.want {
			t.Errorf("judged at %s and deleted at %s: %v", c.judged, c.deleted, got)
		}
	}
}
