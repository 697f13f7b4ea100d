package limit

import (
	"context"
	"runtime"
	"sync"
)

// Turns limits how many costly requests run at the same time, so that they leave processor
// time to all others. At most half as many as there are processors run, but at least one. Of
// each client, only one runs or waits for a processor; its other ones wait behind it. So
// a client that sends many costly requests delays those of another client by one of its own,
// not by all.
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

// NewTurns returns a Turns for this machine's processors.
func NewTurns() *Turns {
	return newTurns(max(1, runtime.GOMAXPROCS(0)/2))
}

func newTurns(n int) *Turns {
	return &Turns{running: make(chan struct{}, n), clients: map[string]*turn{}}
}

// Wait waits until a request of this client may run. The caller must call done when it has
// ended. Error: the context's, if that ends first; done is nil then.
func (t *Turns) Wait(ctx context.Context, client string) (done func(), err error) {
	c := t.enter(client)
	select {
	case c.first <- struct{}{}:
	case <-ctx.Done():
		t.leave(client, c)
		return nil, ctx.Err()
	}
	end := func() {
		<-c.first
		t.leave(client, c)
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
