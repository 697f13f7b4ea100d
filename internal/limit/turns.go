package limit

import (
	"cmp"
	"context"
	"runtime"
	"sync"
)

// Turns limits how many costly requests run at the same time, so that they leave processor
// time to all others. Of each client, only one runs or waits for a processor; its other ones wait
// behind it. So a client that sends many costly requests delays those of another client by one of
// its own, not by all.
type Turns struct {
	running chan struct{} // has an element for each request that runs

	mu      sync.Mutex
	clients map[string]*turn
}

// turn is the order of one client's requests.
type turn struct {
	first chan struct{} // has an element while a request of the client runs or is next
	users int           // requests that run or wait; protected by Turns.mu
}

// NewTurns returns a Turns that lets n requests run at once. Default: half as many as there are
// processors, but at least one.
func NewTurns(n int) *Turns {
	n = cmp.Or(n, max(1, runtime.GOMAXPROCS(0)/2))
	return &Turns{running: make(chan struct{}, n), clients: map[string]*turn{}}
}

// Wait waits until a request may run that belongs to all of these clients, such as an account and
// the namespace that it uses. The callers name clients of one kind at the same position, so that
// requests don't wait for each other in a circle. The caller must call done when the request has
// ended. Error: the context's, if that ends first; done is nil then.
func (t *Turns) Wait(ctx context.Context, clients ...string) (done func(), err error) {
	end := func() {}
	for _, client := range clients {
		c, outer := t.enter(client), end
		select {
		case c.first <- struct{}{}:
		case <-ctx.Done():
			t.leave(client, c)
			outer()
			return nil, ctx.Err()
		}
		end = func() {
			<-c.first
			t.leave(client, c)
			outer()
		}
	}
	select {
	case t.running <- struct{}{}:
		return func() { <-t.running; end() }, nil
	case <-ctx.Done():
		end()
		return nil, ctx.Err()
	}
}

func (t *Turns) enter(client string) *turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.clients[client]
	if c == nil {
		c = &turn{first: make(chan struct{}, 1)}
		t.clients[client] = c
	}
	c.users++
	return c
}

func (t *Turns) leave(client string, c *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.users--; c.users == 0 {
		delete(t.clients, client)
	}
}
