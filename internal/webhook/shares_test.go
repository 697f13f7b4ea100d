package webhook

import (
	"fmt"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/db"
)

// silent starts a receiver that doesn't answer before the test ends.
func silent(t testing.TB) *receiver {
	t.Helper()
	release := make(chan struct{})
	rec := receive(t, func(_ http.ResponseWriter, r *http.Request, _ int) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	t.Cleanup(func() { close(release) }) // before the receiver is closed
	return rec
}

// subscribeIn makes a namespace with n webhooks that ask for pushes.
func subscribeIn(t testing.TB, s *Sender, d *db.DB, namespace string, n int, address string) {
	t.Helper()
	exec(t, d, 1, "INSERT INTO top_level_namespaces (name) VALUES ($1)", namespace)
	for range n {
		_, _, err := s.CreateHook(t.Context(), namespace, HookChange{URL: &address, Events: []string{EventPush}})
		must(t, err)
	}
}

// TestSilentReceivers: all webhooks of a namespace go to a receiver that doesn't answer. The
// notices of another namespace, whose receiver nothing is known of yet, must be delivered
// meanwhile.
func TestSilentReceivers(t *testing.T) {
	t.Parallel()
	s, d := hooked(t, Options{Timeout: 10 * time.Minute}) // longer than the test
	stuck, good := silent(t), receive(t, nil)
	subscribeIn(t, s, d, "storm", maxLanes, stuck.URL)
	subscribeIn(t, s, d, "calm", 1, good.URL)
	stop := start(t, s.Run)
	logged(t, d, entryOf(audit.PushRepo, "storm/web", "v1"))
	eventually(t, "receivers are silent", func() bool { return len(stuck.requests()) > 0 })
	for i := range 3 {
		logged(t, d, entryOf(audit.PushRepo, "calm/web", fmt.Sprint(i)))
		eventually(t, "the other namespace's receiver is told", func() bool { return len(good.requests()) == i+1 })
	}
	if n := len(stuck.requests()); n > unprovenNamespaceLanes {
		t.Errorf("the silent receivers have %d lanes, want at most %d", n, unprovenNamespaceLanes)
	}
	stop()
}

// TestSilentReceiversOfMany: the webhooks of more namespaces than there are lanes go to silent
// receivers. A receiver that has answered before must be told meanwhile.
func TestSilentReceiversOfMany(t *testing.T) {
	t.Parallel()
	s, d := hooked(t, Options{Timeout: 10 * time.Minute})
	good := receive(t, nil)
	subscribeIn(t, s, d, "calm", 1, good.URL)
	stop := start(t, s.Run)
	logged(t, d, entryOf(audit.PushRepo, "calm/web", "v1"))
	eventually(t, "the receiver has answered", func() bool { return len(good.requests()) == 1 })
	receivers := []*receiver{silent(t), silent(t), silent(t), silent(t)}
	for i := range maxLanes + 8 {
		name := fmt.Sprintf("storm%d", i)
		subscribeIn(t, s, d, name, 1, receivers[i%len(receivers)].URL)
		logged(t, d, entryOf(audit.PushRepo, name+"/web", "v1"))
	}
	asked := func() (n int) {
		for _, r := range receivers {
			n += len(r.requests())
		}
		return n
	}
	eventually(t, "the silent receivers have their share", func() bool { return asked() == unprovenLanes })
	logged(t, d, entryOf(audit.PushRepo, "calm/web", "v2"))
	eventually(t, "the receiver that answers is told", func() bool { return len(good.requests()) == 2 })
	if n := asked(); n != unprovenLanes {
		t.Errorf("the silent receivers have %d lanes, want %d", n, unprovenLanes)
	}
	stop()
}

// TestReceiverThatWasSlow: a lane ends as soon as an attempt was slow, however many notices
// wait, and its webhook then comes after those that nothing is known of.
func TestReceiverThatWasSlow(t *testing.T) {
	t.Parallel()
	s, d := hooked(t, Options{Timeout: 4 * time.Millisecond, RetryMin: time.Hour})
	stuck := silent(t)
	h := subscribe(t, s, stuck.URL, EventPush)
	for i := range 3 * laneWidth {
		logged(t, d, entryOf(audit.PushRepo, "app/web", fmt.Sprint(i)))
	}
	dispatchAll(t, s)
	var secret string
	must(t, d.Pool.QueryRow(t.Context(), "SELECT secret FROM webhooks WHERE uuid = $1", h.ID).Scan(&secret))
	s.lanes.lane(t.Context(), hook{ID: h.ID, URL: stuck.URL, Secret: secret})
	if n := count(t, d, "attempts = 0"); n != 2*laneWidth {
		t.Errorf("%d notices weren't tried, want %d: the lane went on", n, 2*laneWidth)
	}
	if got := s.lanes.standings.of(h.ID, time.Now()); got != isSlow {
		t.Errorf("its standing is %d, want slow", got)
	}
}

// TestStandings checks how long an attempt counts.
func TestStandings(t *testing.T) {
	t.Parallel()
	s, id, now := newStandings(4*time.Second), uuid.New(), time.Now()
	check := func(after time.Duration, want standing) {
		t.Helper()
		if got := s.of(id, now.Add(after)); got != want {
			t.Errorf("after %v: %d, want %d", after, got, want)
		}
	}
	check(0, isUnknown)
	s.note(id, 0, now)
	check(time.Hour, isQuick)
	check(quickAge, isUnknown)
	s.note(id, time.Second, now.Add(time.Hour))
	s.note(id, 0, now.Add(time.Hour+time.Second)) // one quick answer doesn't make up for it
	check(time.Hour+time.Minute, isSlow)
	check(time.Hour+slowAge, isQuick)
}

// TestChoose gives lanes to webhooks of all kinds.
func TestChoose(t *testing.T) {
	t.Parallel()
	var due []share
	add := func(n int, namespace int64, host string, is standing) {
		for range n {
			due = append(due, share{hook{ID: uuid.New(), Namespace: namespace}, is, host})
		}
	}
	for _, test := range []struct {
		name  string
		fill  func()
		want  map[int64]int // lanes by namespace
		total int
	}{
		{"one namespace", func() { add(40, 1, "a", isQuick) }, map[int64]int{1: namespaceLanes}, namespaceLanes},
		{"one host", func() {
			for i := range int64(40) {
				add(1, i, "a", isQuick)
			}
		}, nil, hostLanes},
		{"quick ones leave room", func() {
			for i := range int64(40) {
				add(1, i, fmt.Sprint(i), isQuick)
			}
			add(1, 40, "slow", isSlow)
			add(1, 41, "new", isUnknown)
		}, map[int64]int{40: 1, 41: 1}, quickLanes + 2},
		{"new ones before slow ones", func() {
			for i := range int64(20) {
				add(1, i, fmt.Sprint(i), isSlow)
				add(1, 100+i, fmt.Sprint(100+i), isUnknown)
			}
		}, map[int64]int{0: 0, 19: 0}, unprovenLanes},
		{"slow ones leave room", func() {
			for i := range int64(40) {
				add(1, i, fmt.Sprint(i), isSlow)
			}
		}, nil, slowLanes},
		{"fewest lanes first", func() {
			for i := range int64(4) {
				add(20, i, fmt.Sprint(i), isQuick)
			}
			add(1, 9, "z", isQuick)
		}, map[int64]int{9: 1}, quickLanes},
	} {
		due = nil
		test.fill()
		all := len(due)
		chosen, waiting := shares{}.choose(due)
		got := map[int64]int{}
		for _, one := range chosen {
			got[one.Namespace]++
		}
		if len(chosen) != test.total || len(chosen)+len(waiting) != all {
			t.Errorf("%s: %d get lanes and %d wait, want %d of %d", test.name, len(chosen), len(waiting), test.total, all)
		}
		for namespace, want := range test.want {
			if got[namespace] != want {
				t.Errorf("%s: namespace %d has %d lanes, want %d", test.name, namespace, got[namespace], want)
			}
		}
	}
}

func TestHostOf(t *testing.T) {
	t.Parallel()
	for _, same := range []string{"https://Hooks.example.com/a", "https://hooks.example.com./b?c", (&url.URL{Scheme: "http", Host: "hooks.example.com"}).String()} {
		if got := hostOf(same); got != "hooks.example.com:" {
			t.Errorf("%s: %q", same, got)
		}
	}
}
