package identity

import (
	"context"
	"errors"
	"slices"
	"sync"
)

// Shares of the fetches that a process makes at the same time. An issuer that doesn't answer holds
// its fetch until the timeout.
const (
	maxFetches       = 32
	newFetches       = maxFetches * 3 / 4 // of issuers whose keys were never fetched
	namespaceFetches = maxFetches / 8     // for a namespace, of new issuers and of known ones each
)

type namespaceKey struct{}

// WithNamespace returns a context for Verifier's methods that says in whose rules the issuer is
// named. A namespace has a share of the fetches and of the issuers whose keys are kept. Calls
// without a namespace have none.
func WithNamespace(ctx context.Context, namespace string) context.Context {
	return context.WithValue(ctx, namespaceKey{}, namespace)
}

func namespaceOf(ctx context.Context) string {
	namespace, _ := ctx.Value(namespaceKey{}).(string)
	return namespace
}

// errNoTurn says that a fetch wasn't begun.
var errNoTurn = errors.New("too many other issuers are slow")

// fetcher is what a fetch counts for.
type fetcher struct {
	namespace string
	known     bool // the issuer's keys were fetched before
}

// fetchTurns bounds how many fetches run at once. Of those that wait, issuers that are known come
// first, and then those of the namespace with the fewest fetches: the timeout of a fetch has begun
// when it waits, so namespaces with slow issuers must not get every place that becomes free.
type fetchTurns struct {
	mu         sync.Mutex
	running    map[fetcher]int
	all, fresh int
	waiting    []*fetchWaiter // in the order in which they came
}

type fetchWaiter struct {
	fetcher
	turn chan struct{} // is closed when it is its turn
}

// wait waits until a fetch may begin. The caller calls done when it has ended. Error: errNoTurn, if
// the context ends first.
func (t *fetchTurns) wait(ctx context.Context, f fetcher) (done func(), err error) {
	w := &fetchWaiter{f, make(chan struct{})}
	done = func() { t.end(f) }
	t.mu.Lock()
	t.waiting = append(t.waiting, w)
	t.begin()
	t.mu.Unlock()
	select {
	case <-w.turn:
		return done, nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	i := slices.Index(t.waiting, w)
	if i >= 0 {
		t.waiting = slices.Delete(t.waiting, i, i+1)
	}
	t.mu.Unlock()
	if i < 0 { // it was its turn at the same moment
		done()
	}
	return nil, errNoTurn
}

func (t *fetchTurns) end(f fetcher) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.count(f, -1)
	t.begin()
}

// begin lets those begin that may. The caller holds mu.
func (t *fetchTurns) begin() {
	for i := t.next(); i >= 0; i = t.next() {
		w := t.waiting[i]
		t.waiting = slices.Delete(t.waiting, i, i+1)
		t.count(w.fetcher, 1)
		close(w.turn)
	}
}

// next returns the place in `waiting` of the fetch that begins next, -1 if none may.
func (t *fetchTurns) next() int {
	next := -1
	for i, w := range t.waiting {
		if t.fits(w.fetcher) && (next < 0 || t.before(w.fetcher, t.waiting[next].fetcher)) {
			next = i
		}
	}
	return next
}

// before says whether a fetch for f begins before one for g that has waited for longer.
func (t *fetchTurns) before(f, g fetcher) bool {
	if f.known != g.known {
		return f.known
	}
	return t.running[f] < t.running[g]
}

func (t *fetchTurns) fits(f fetcher) bool {
	return t.all < maxFetches && (f.known || t.fresh < newFetches) && (f.namespace == "" || t.running[f] < namespaceFetches)
}

func (t *fetchTurns) count(f fetcher, n int) {
	if t.running == nil {
		t.running = map[fetcher]int{}
	}
	t.all += n
	if !f.known {
		t.fresh += n
	}
	if t.running[f] += n; t.running[f] == 0 {
		delete(t.running, f)
	}
}
