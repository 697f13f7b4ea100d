package limit

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// BudgetOptions configure a Budget.
type BudgetOptions struct {
	Total int64 // bytes; 0: no limit
	// Share is the percentage of Total that one client may use while no other client uses
	// memory of the budget. Default 50.
	Share int
	// Wait limits how long Take waits for memory.
	Wait    time.Duration
	Metrics *Metrics
}

// Budget is the memory that the bodies of all requests together may use. It only counts: code
// takes bytes from the budget before it allocates memory, and gives them back when the memory
// is free again.
//
// One client may hold at most Share/(100-Share) times as many bytes as are free: with a
// Share of 50 percent, as many as are still free. So one client gets at most half of the
// total, two get a third each, and some memory is always left for the next client. Memory
// for a stream, which reuses its buffer, is given only while all requests together use at
// most three quarters of the total. The last quarter is reserved for bodies that are read
// completely into memory, so that uploads of blobs can't block the push of the manifest
// that refers to them.
//
// A lease with an account (Lease.Account) counts for its client and for its account, and the
// account may hold as much as one client may. Every byte counts once in the total. So an
// account gets no more by using many addresses, and others' shares stay as they are. The robots
// of one namespace count as one account.
type Budget struct {
	o BudgetOptions

	mu       sync.Mutex
	used     int64
	clients  map[string]int64
	accounts map[string]int64
	waiters  []*waiter // in order of arrival
}

type waiter struct {
	lease  *Lease
	n      int64
	stream bool
	ready  chan struct{} // closed when the memory was granted
}

// NewBudget makes a budget.
func NewBudget(o BudgetOptions) *Budget {
	o.Share = cmp.Or(o.Share, 50)
	if o.Metrics != nil {
		o.Metrics.total.Set(float64(o.Total))
	}
	return &Budget{o: o, clients: map[string]int64{}, accounts: map[string]int64{}}
}

// FullError says that a request didn't get memory within the time for which it may wait.
type FullError struct {
	Client bool // the client or account itself uses all that one may
}

// Error returns the text for the log.
func (e *FullError) Error() string {
	if e.Client {
		return "the requests of this client or account have as much memory as one may have"
	}
	return "requests have all the memory that they may have"
}

// total returns how many bytes all requests together may use: three quarters of Total if
// the memory that is asked for is for a stream, else Total.
func (b *Budget) total(stream bool) int64 {
	if stream {
		return b.o.Total / 4 * 3
	}
	return b.o.Total
}

// full returns the limit that n more bytes of the lease would exceed: BodyMemory if less than n
// bytes of the total are free, ClientBodyMemory or AccountBodyMemory if the client or account
// would exceed its share, else "". The caller holds the lock b.mu.
func (b *Budget) full(l *Lease, n int64, stream bool) string {
	free := b.total(stream) - b.used - n
	if free < 0 {
		return BodyMemory
	}
	share := int64(b.o.Share)
	if (b.clients[l.client]+n)*(100-share) > free*share {
		return ClientBodyMemory
	}
	if l.account != "" && (b.accounts[l.account]+n)*(100-share) > free*share {
		return AccountBodyMemory
	}
	return ""
}

// change adds n to the number of bytes that the lease holds; n may be negative. The caller
// holds the lock b.mu.
func (b *Budget) change(l *Lease, n int64) {
	l.held += n
	b.used += n
	count(b.clients, l.client, n)
	if l.account != "" {
		count(b.accounts, l.account, n)
	}
	if b.o.Metrics != nil {
		b.o.Metrics.used.Set(float64(b.used))
	}
}

// count adds n to the number of the key. Keys whose number is 0 aren't kept.
func count(numbers map[string]int64, key string, n int64) {
	if numbers[key] += n; numbers[key] <= 0 {
		delete(numbers, key)
	}
}

// grant goes through the waiting requests in the order of their arrival, and gives memory to
// each request for which enough is free. The caller holds the lock b.mu.
func (b *Budget) grant() {
	b.waiters = slices.DeleteFunc(b.waiters, func(w *waiter) bool {
		if b.full(w.lease, w.n, w.stream) != "" {
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

// Lease is the memory that one request has taken from a Budget. A nil Lease counts nothing and
// sets no limit. Only one goroutine at a time may use it.
type Lease struct {
	b       *Budget
	client  string
	account string // whose share it is, see Share; "": none
	held    int64
	// expected is how many bytes the request's body will have, -1 if unknown.
	expected int64
}

// Lease returns a lease for one request of a client; it returns nil if the budget has no
// limit. Close gives all of the lease's memory back.
func (b *Budget) Lease(client string) *Lease {
	if b == nil || b.o.Total <= 0 {
		return nil
	}
	return &Lease{b: b, client: client, expected: -1}
}

// Account says that an account has sent the request: the lease's memory counts for the account's
// share too (see Share). The account "" means none. Call it at most once, before the lease takes
// memory.
func (l *Lease) Account(name string) {
	if l != nil {
		l.account = Share(name)
	}
}

// Expect tells the lease how many bytes the request will stream. Code that allocates buffers
// reads this number by Expected.
func (l *Lease) Expect(n int64) {
	if l != nil {
		l.expected = n
	}
}

// Expected returns the number that Expect was last given, -1 at first.
func (l *Lease) Expected() int64 {
	if l == nil {
		return -1
	}
	return l.expected
}

// Take takes n bytes from the budget for a body that is read into memory, and returns how many
// it took; the caller must give them back. If n is more than one client may ever hold, Take
// takes only as many bytes as one client may hold. If too little memory is free, Take waits up
// to BudgetOptions.Wait and then returns a FullError. If ctx ends first, it returns an error
// that wraps the cause of ctx's end.
func (l *Lease) Take(ctx context.Context, n int64) (int64, error) {
	if l == nil {
		return n, nil
	}
	return l.take(ctx, n, false, l.b.o.Wait)
}

// TakeStream is like Take, but takes bytes for the buffer of a stream, and waits for free
// memory at most as long as `wait`.
func (l *Lease) TakeStream(ctx context.Context, n int64, wait time.Duration) (int64, error) {
	if l == nil {
		return n, nil
	}
	return l.take(ctx, n, true, wait)
}

// TryStream takes n bytes for the buffer of a stream, if they are free now. It returns whether
// it took them.
func (l *Lease) TryStream(n int64) bool {
	if l == nil {
		return true
	}
	l.b.mu.Lock()
	defer l.b.mu.Unlock()
	if l.b.full(l, n, true) != "" {
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
	full := b.full(l, n, stream)
	if full == "" {
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
		err = &FullError{Client: full != BodyMemory}
	case <-ctx.Done():
		err = fmt.Errorf("waiting for memory: %w", context.Cause(ctx))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.Index(b.waiters, w)
	if i < 0 { // granted at this moment
		return n, nil
	}
	b.waiters = slices.Delete(b.waiters, i, i+1)
	b.tellWaiting()
	b.o.Metrics.Refused(full)
	return 0, err
}

// Held returns how many bytes the lease has.
func (l *Lease) Held() int64 {
	if l == nil {
		return 0
	}
	l.b.mu.Lock()
	defer l.b.mu.Unlock()
	return l.held
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

// WithLease returns a context that carries a lease to code that allocates buffers.
func WithLease(ctx context.Context, l *Lease) context.Context {
	return context.WithValue(ctx, leaseKey{}, l)
}

// LeaseOf returns the context's lease, nil without one.
func LeaseOf(ctx context.Context) *Lease {
	l, _ := ctx.Value(leaseKey{}).(*Lease)
	return l
}
