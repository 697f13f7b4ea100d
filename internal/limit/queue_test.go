package limit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
)

// turnCrowd is a Queue with one turn at a time. The turns end when the test says so.
type turnCrowd struct {
	*testing.T
	q       *Queue
	gate    chan struct{}
	order   []string // of those whose turn came
	refused map[string]int
}

func newTurnCrowd(t *testing.T, queue int) *turnCrowd {
	return &turnCrowd{t, NewQueue(1, queue), make(chan struct{}), nil, map[string]int{}}
}

// enter lets n callers wait, one after the other.
func (c *turnCrowd) enter(name string, n int, caller func(i int) Caller) {
	c.Helper()
	for i := range n {
		go func() {
			err := c.q.Enter(WithCaller(c.Context(), caller(i)))
			if err == nil {
				c.order = append(c.order, name)
				<-c.gate
				c.q.Leave()
			} else if errors.Is(err, ErrFull) {
				c.refused[name]++
			} else {
				c.Error(err)
			}
		}()
		synctest.Wait()
	}
}

// finish ends all turns and returns the names of those that began with the n-th.
func (c *turnCrowd) finish(n int) []string {
	c.Helper()
	close(c.gate)
	synctest.Wait()
	if c.q.free != 1 || len(c.q.list) != 0 {
		c.Errorf("at the end %d turns are free and %d callers wait", c.q.free, len(c.q.list))
	}
	return c.order[n:]
}

func from(address string) func(int) Caller {
	return func(i int) Caller { return Caller{Account: fmt.Sprintf("%s-%d", address, i), Address: address} }
}

// TestQueueOfOneAddress: 120 log-ins of one address come at once. They have their share of the
// waiting places, and a log-in of another address comes next, as does one of an account that has
// logged in from the first address before.
func TestQueueOfOneAddress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newTurnCrowd(t, 64)
		c.enter("storm", 120, from("192.0.2.1"))
		if n := c.refused["storm"]; n != 120-1-16 {
			t.Errorf("%d of the storm are refused, want %d", n, 120-1-16)
		}
		c.enter("neighbour", 1, from("192.0.2.2"))
		c.enter("known", 1, func(int) Caller { return Caller{Account: "ada", Address: "192.0.2.1", Known: true} })
		c.enter("own", 1, func(int) Caller { return Caller{} })
		order := c.finish(1)
		if at := slices.Index(order, "neighbour"); at < 0 || at > 3 {
			t.Errorf("the neighbour's turn was the %dth: %v", at, order)
		}
		if order[0] != "known" || order[1] != "own" || len(order) != 19 {
			t.Errorf("the order was %v", order)
		}
	})
}

// TestQueueOfManyAddresses: log-ins of many addresses fill the queue. Known accounts still get
// places, and those that came last lose theirs. So does a newcomer's larger neighbour.
func TestQueueOfManyAddresses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newTurnCrowd(t, 8)
		for i := range 5 {
			c.enter("storm", 2, from(fmt.Sprint("192.0.2.", i)))
		}
		if n := c.refused["storm"]; n != 1 { // one runs, eight wait
			t.Fatalf("%d are refused, want 1", n)
		}
		for i := range 3 {
			c.enter("known", 1, func(int) Caller { return Caller{Account: fmt.Sprint(i), Address: "192.0.2.9", Known: true} })
		}
		if c.refused["known"] != 0 || c.refused["storm"] != 4 {
			t.Errorf("refused: %v", c.refused)
		}
		order := c.finish(1)
		if want := []string{"known", "known", "known"}; !slices.Equal(order[:3], want) || len(order) != 8 {
			t.Errorf("the order was %v", order)
		}
	})
}

// TestQueueMakesRoom: in a full queue, an address with nobody in it takes a place of the one with
// most places.
func TestQueueMakesRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newTurnCrowd(t, 12)
		for i := range 6 {
			c.enter("storm", 3, from(fmt.Sprint("192.0.2.", i)))
		}
		before := c.refused["storm"]
		c.enter("neighbour", 3, from("198.51.100.1"))
		if c.refused["neighbour"] != 2 || c.refused["storm"] != before+1 { // all groups have two places or one
			t.Errorf("refused: %v, before %d of the storm", c.refused, before)
		}
		if order := c.finish(1); len(order) != 12 {
			t.Errorf("the order was %v", order)
		}
	})
}

// TestQueueOfOneAccount: log-ins for one account come from many addresses. They have the share of
// one account, and those of the account where it is known aren't counted with them.
func TestQueueOfOneAccount(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newTurnCrowd(t, 64)
		c.enter("storm", 40, func(i int) Caller { return Caller{Account: "ada", Address: fmt.Sprint("192.0.2.", i)} })
		c.enter("ada", 1, func(int) Caller { return Caller{Account: "ada", Address: "198.51.100.1", Known: true} })
		if c.refused["storm"] != 40-1-16 || c.refused["ada"] != 0 {
			t.Errorf("refused: %v", c.refused)
		}
		if order := c.finish(1); order[0] != "ada" {
			t.Errorf("the order was %v", order)
		}
	})
}

// TestQueueServesUnknown: while known callers wait, unknown ones get each fourth turn.
func TestQueueServesUnknown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newTurnCrowd(t, 64)
		c.enter("first", 1, from("192.0.2.1"))
		c.enter("unknown", 2, from("192.0.2.1"))
		c.enter("known", 8, func(i int) Caller { return Caller{Account: fmt.Sprint(i), Address: "192.0.2.1", Known: true} })
		k, u := "known", "unknown"
		if order := c.finish(1); !slices.Equal(order, []string{k, k, k, u, k, k, k, u, k, k}) {
			t.Errorf("the order was %v", order)
		}
	})
}

// TestQueueGivenUp: callers give up while they wait. Their places become free, and no turn is
// lost.
func TestQueueGivenUp(t *testing.T) {
	t.Parallel()
	q := NewQueue(1, 4)
	for range 1000 {
		ctx, cancel := context.WithCancel(t.Context())
		if err := q.Enter(t.Context()); err != nil {
			t.Fatal(err)
		}
		waits, done := make(chan struct{}), make(chan error, 1)
		go func() {
			err := q.EnterObserved(ctx, func() func() { close(waits); return func() {} })
			if err == nil {
				q.Leave()
			}
			done <- err
		}()
		<-waits
		go cancel()
		q.Leave()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if q.free != 1 || len(q.list) != 0 {
			t.Fatalf("%d turns are free and %d wait", q.free, len(q.list))
		}
	}
}
