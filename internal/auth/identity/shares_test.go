package identity

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/auth/identity/identitytest"
)

// silence makes issuers not answer any more before the test ends. `asked` gets an element for each
// request.
func silence(t *testing.T, list ...*identitytest.Issuer) (asked chan struct{}) {
	t.Helper()
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	asked = make(chan struct{}, 1000)
	for _, issuer := range list {
		issuer.Serve(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			asked <- struct{}{}
			select {
			case <-release:
			case <-r.Context().Done():
			}
		}))
	}
	return asked
}

// TestSlowIssuersOfANamespace: the rules of a namespace name more silent issuers than there are
// fetches. A namespace whose issuer is known, and one whose issuer is new, log in meanwhile; so
// does one that uses an issuer for which the first namespace waits.
func TestSlowIssuersOfANamespace(t *testing.T) {
	t.Parallel()
	clock := &clock{}
	o := forTests(clock)
	o.Timeout = 10 * time.Minute // longer than the test
	v := NewVerifier(o)
	calm, known, fresh := WithNamespace(t.Context(), "calm"), identitytest.NewIssuer(t), identitytest.NewIssuer(t)
	verify := func(ctx context.Context, issuer *identitytest.Issuer) error {
		_, err := v.Verify(ctx, issuer.Sign(t, pipeline("exp", clock.now().Add(time.Hour).Unix())), issuer.URL, audience)
		return err
	}
	must(t, verify(calm, known))
	storm, end := context.WithCancel(WithNamespace(t.Context(), "storm"))
	slow := make([]*identitytest.Issuer, maxFetches+8)
	for i := range slow {
		slow[i] = identitytest.NewIssuer(t)
	}
	asked := silence(t, slow...)
	var clients sync.WaitGroup
	defer clients.Wait()
	defer end()
	for _, issuer := range append(slow, fresh) {
		token := issuer.Sign(t, pipeline("exp", clock.now().Add(2*time.Hour).Unix()))
		clients.Go(func() {
			if _, err := v.Verify(storm, token, issuer.URL, audience); issuer != fresh && !errors.Is(err, ErrUnavailable) {
				t.Errorf("a silent issuer: %v", err)
			}
		})
		if issuer == slow[namespaceFetches-1] {
			for range namespaceFetches {
				<-asked
			}
		}
	}
	must(t, verify(calm, fresh))
	clock.add(keyLife + time.Minute) // the keys have to be fetched again
	must(t, verify(calm, known))
	if n := known.Requests.Load(); n != 4 {
		t.Errorf("%d requests to the issuer that is known, want 4", n)
	}
	if n := len(asked); n != 0 {
		t.Errorf("%d more fetches for the namespace have begun", n)
	}
	// A client that goes away doesn't end the fetch that others may wait for.
	end()
	clients.Wait()
}

// TestNewIssuersOfOthers: many namespaces name many new issuers. The keys of an issuer that was
// known before stay.
func TestNewIssuersOfOthers(t *testing.T) {
	t.Parallel()
	v := NewVerifier(VerifierOptions{AllowPrivate: true, MaxIssuers: 32}) // a share of 2
	calm, issuer := WithNamespace(t.Context(), "calm"), identitytest.NewIssuer(t)
	verify := func() {
		t.Helper()
		_, err := v.Verify(calm, issuer.Sign(t, pipeline()), issuer.URL, audience)
		must(t, err)
	}
	verify()
	at := func(namespace, name string) {
		v.issuers.keysOf(WithNamespace(t.Context(), namespace), "https://"+name+".example.com")
	}
	for i := range 1000 {
		at("storm", fmt.Sprint("storm", i))
	}
	if n := v.issuers.count("storm"); n != 2 || len(v.issuers.kept) != 3 {
		t.Errorf("a namespace has %d issuers of %d, want 2 of 3", n, len(v.issuers.kept))
	}
	for i := range 100 {
		for j := range 5 {
			at(fmt.Sprint("storm", i), fmt.Sprintf("storm-%d-%d", i, j))
		}
	}
	if len(v.issuers.kept) != 32 {
		t.Errorf("%d issuers are kept, want 32", len(v.issuers.kept))
	}
	verify()
	if n := issuer.Requests.Load(); n != 2 {
		t.Errorf("%d requests to the issuer, want 2: its keys were forgotten", n)
	}
}

// TestSharedIssuer: an issuer that several namespaces use stays while one of them keeps it.
func TestSharedIssuer(t *testing.T) {
	t.Parallel()
	v := NewVerifier(VerifierOptions{AllowPrivate: true, MaxIssuers: 32})
	issuer := identitytest.NewIssuer(t)
	for _, namespace := range []string{"storm", "calm"} {
		_, err := v.Verify(WithNamespace(t.Context(), namespace), issuer.Sign(t, pipeline()), issuer.URL, audience)
		must(t, err)
	}
	for i := range 100 {
		v.issuers.keysOf(WithNamespace(t.Context(), "storm"), fmt.Sprint("https://storm.example.com/", i))
	}
	_, err := v.Verify(WithNamespace(t.Context(), "calm"), issuer.Sign(t, pipeline()), issuer.URL, audience)
	must(t, err)
	if n := issuer.Requests.Load(); n != 2 {
		t.Errorf("%d requests to the issuer, want 2", n)
	}
	for i := range 2 * maxUsers {
		v.issuers.keysOf(WithNamespace(t.Context(), fmt.Sprint(i)), issuer.URL)
	}
	if n := len(v.issuers.kept[issuer.URL].users); n != maxUsers {
		t.Errorf("%d users are remembered, want %d", n, maxUsers)
	}
}

// TestFetchTurns: known issuers have fetches that new ones can't take, and come first.
func TestFetchTurns(t *testing.T) {
	t.Parallel()
	var turns fetchTurns
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	begin := func(f fetcher) func() {
		done, err := turns.wait(ended, f)
		if done == nil && !errors.Is(err, errNoTurn) {
			t.Errorf("%v", err)
		}
		return done
	}
	tries := func(n int, known bool) (done []func()) {
		for i := range n {
			// A turn may be given and lost, since the context has ended.
			for range 100 {
				if d := begin(fetcher{fmt.Sprint(i), known}); d != nil {
					done = append(done, d)
					break
				}
			}
		}
		return done
	}
	fresh := tries(40, false)
	known := tries(40, true)
	if len(fresh) != newFetches || len(known) != maxFetches-newFetches {
		t.Errorf("%d new and %d known ones run, want %d and %d", len(fresh), len(known), newFetches, maxFetches-newFetches)
	}
	for _, done := range append(fresh, known...) {
		done()
	}
	if turns.all != 0 || turns.fresh != 0 || len(turns.running) != 0 || len(turns.waiting) != 0 {
		t.Errorf("at the end: %d, %d, %v, %d wait", turns.all, turns.fresh, turns.running, len(turns.waiting))
	}
}

// TestFetchTurnsOfNamespaces: namespaces whose issuers don't answer have all places for new issuers, and
// wait for more. A place that becomes free goes to the namespace with the fewest fetches, also if it
// came later, and of two with as many to the one that has waited for longer.
func TestFetchTurnsOfNamespaces(t *testing.T) {
	t.Parallel()
	var turns fetchTurns
	wait := func(namespace string) *fetchWaiter {
		w := &fetchWaiter{fetcher{namespace, false}, make(chan struct{})}
		turns.mu.Lock()
		defer turns.mu.Unlock()
		turns.waiting = append(turns.waiting, w)
		turns.begin()
		return w
	}
	want := func(w *fetchWaiter, turn bool) {
		t.Helper()
		got := false
		select {
		case <-w.turn:
			got = true
		default:
		}
		if got != turn {
			t.Errorf("a fetch for %s has its turn: %v, want %v; %v run", w.namespace, got, turn, turns.running)
		}
	}
	storms := make([]string, newFetches/namespaceFetches)
	for i := range storms {
		storms[i] = fmt.Sprint("storm", i)
		for range namespaceFetches {
			want(wait(storms[i]), true)
		}
	}
	var waiting []*fetchWaiter
	for _, storm := range storms {
		waiting = append(waiting, wait(storm), wait(storm))
	}
	for i := range namespaceFetches - 1 {
		calm := wait("calm")
		want(calm, false)
		turns.end(fetcher{storms[i], false})
		want(calm, true)
	}
	for _, w := range waiting {
		want(w, false)
	}
	last := wait("calm")
	turns.end(fetcher{storms[len(storms)-1], false})
	want(waiting[0], true) // its namespace had as many fetches as calm
	want(last, false)
}
