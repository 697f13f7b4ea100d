package limit

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// BudgetOptions say how much memory there is to share out.
type BudgetOptions struct {
	Total int64 // bytes; 0: no limit
	// Share is how many percent of Total one client may hold while nobody else holds
	// any. Default 50.
	Share int
	// Wait is how long Take waits for others to give memory back.
	Wait    time.Duration
	Metrics *Metrics
}

// Budget is the memory that requests may hold together. It is counted and not
// allocated: whoever allocates takes first, and gives back after.
//
// A client may hold Share/(100-Share) times what is free: with 50 percent, as much as
// is left for others. So one client gets half of all, two get a third each, and
// however many there are, some is left for the next. Streams, which fill buffers over
// and over, have three quarters of all; the rest is for bodies that are held until
// they are whole, so that uploads can't hold up the manifest that they are for.
type Budget struct {
	o BudgetOptions

	mu      sync.Mutex
	used    int64
	clients map[string]int64
	waiters []*waiter // in the order in which they came
}

type waiter struct {
	lease  *Lease
	n      int64
	stream bool
	ready  chan struct{} // closed when it was granted
}

// NewBudget makes a budget.
func NewBudget(o BudgetOptions) *Budget {
	o.Share = cmp.Or(o.Share, 50)
	if o.Metrics != nil {
		o.Metrics.total.Set(float64(o.Total))
	}
	return &Budget{o: o, clients: map[string]int64{}}
}

// FullError says that memory wasn't given back in time.
type FullError struct {
	Client bool // the client itself holds all that it may
}

// Error is the text for the log.
func (e *FullError) Error() string {
	if e.Client {
		return "this client's requests hold as much memory as one client's may"
	}
	return "requests hold as much memory as they may"
}

// total is what a kind of use may have in all.
func (b *Budget) total(stream bool) int64 {
	if stream {
		return b.o.Total / 4 * 3
	}
	return b.o.Total
}

// fits tells whether a client may have n more. The lock is held.
func (b *Budget) fits(client string, n int64, stream bool) Full {
	free := b.total(stream) - b.used - n
	if free < 0 {
		return AllFull
	}
	share := int64(b.o.Share)
	if (b.clients[client]+n)*(100-share) > free*share {
		return ClientFull
	}
	return NotFull
}

// change adds n bytes, or less than none, to what a lease holds. The lock is held.
func (b *Budget) change(l *Lease, n int64) {
	l.held += n
	b.used += n
	if b.clients[l.client] += n; b.clients[l.client] <= 0 {
		delete(b.clients, l.client)
	}
	if b.o.Metrics != nil {
		b.o.Metrics.used.Set(float64(b.used))
	}
}

// grant gives those who wait what has become free. The lock is held.
func (b *Budget) grant() {
	b.waiters = slices.DeleteFunc(b.waiters, func(w *waiter) bool {
		if b.fits(w.lease.client, w.n, w.stream) != NotFull {
			return false
		}
		b.change(w.lease, w.n)
		close(w.ready)
		return true
	})
	b.tellWaiting()
}

func (b *Budget) tellWaiting() {
	if b.o.Metrics != nil {
		b.o.Metrics.waiting.Set(float64(len(b.waiters)))
	}
}

// Lease is what one request holds of a budget. A nil one has no limit. It is for one
// goroutine at a time.
type Lease struct {
	b      *Budget
	client string
	held   int64
	// expected is how many bytes the request's stream will have, -1 if that isn't known.
	expected int64
}

// Lease begins a request of a client. Close ends it.
func (b *Budget) Lease(client string) *Lease {
	if b == nil || b.o.Total <= 0 {
		return nil
	}
	return &Lease{b: b, client: client, expected: -1}
}

// Expect tells how many bytes are to be streamed, for whoever buffers them.
func (l *Lease) Expect(n int64) {
	if l != nil {
		l.expected = n
	}
}

// Expected is what Expect was told last, -1 at first.
func (l *Lease) Expected() int64 {
	if l == nil {
		return -1
	}
	return l.expected
}

// Take takes n bytes for a body that is held. It waits for the budget's time and then
// fails with a FullError. What is more than one client may ever have counts as that
// much; Take returns how much it counted, which is what to give back.
func (l *Lease) Take(ctx context.Context, n int64) (int64, error) {
	if l == nil {
		return n, nil
	}
	return l.take(ctx, n, false, l.b.o.Wait)
}

// TakeStream is Take for the buffer of a stream, with a time of its own.
func (l *Lease) TakeStream(ctx context.Context, n int64, wait time.Duration) (int64, error) {
	if l == nil {
		return n, nil
	}
	return l.take(ctx, n, true, wait)
}

// TryStream takes n bytes for the buffer of a stream, if they are there now.
func (l *Lease) TryStream(n int64) bool {
	if l == nil {
		return true
	}
	l.b.mu.Lock()
	defer l.b.mu.Unlock()
	if l.b.fits(l.client, n, true) != NotFull {
		return false
	}
	l.b.change(l, n)
	return true
}

func (l *Lease) take(ctx context.Context, n int64, stream bool, wait time.Duration) (int64, error) {
	b := l.b
	n = min(n, b.total(stream)/100*int64(b.o.Share))
	w := &waiter{lease: l, n: n, stream: stream, ready: make(chan struct{})}
	b.mu.Lock()
	full := b.fits(l.client, n, stream)
	if full == NotFull {
		b.change(l, n)
		b.mu.Unlock()
		return n, nil
	}
	b.waiters = append(b.waiters, w)
	b.tellWaiting()
	b.mu.Unlock()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	var err error
	select {
	case <-w.ready:
		return n, nil
	case <-timer.C:
		err = &FullError{Client: full == ClientFull}
	case <-ctx.Done():
		err = fmt.Errorf("waiting for memory: %w", context.Cause(ctx))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.Index(b.waiters, w)
	if i < 0 { // granted in this moment
		return n, nil
	}
	b.waiters = slices.Delete(b.waiters, i, i+1)
	b.tellWaiting()
	if full == ClientFull {
		b.o.Metrics.Refused(ClientBodyMemory)
	} else {
		b.o.Metrics.Refused(BodyMemory)
	}
	return 0, err
}

// Give gives n bytes back.
func (l *Lease) Give(n int64) {
	if l == nil || n == 0 {
		return
	}
	l.b.mu.Lock()
	defer l.b.mu.Unlock()
	l.b.change(l, -min(n, l.held))
	l.b.grant()
}

// Close gives everything back.
func (l *Lease) Close() {
	if l == nil {
		return
	}
	l.b.mu.Lock()
	defer l.b.mu.Unlock()
	l.b.change(l, -l.held)
	l.b.grant()
}

type leaseKey struct{}

// WithLease returns a context that carries a lease to whoever buffers below.
func WithLease(ctx context.Context, l *Lease) context.Context {
	return context.WithValue(ctx, leaseKey{}, l)
}

// LeaseOf returns the context's lease, nil without one.
func LeaseOf(ctx context.Context) *Lease {
	l, _ := ctx.Value(leaseKey{}).(*Lease)
	return l
}
