package identity

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"

	"github.com/purser-registry/purser/internal/auth/identity/identitytest"
	"github.com/purser-registry/purser/internal/limit"
)

// TestLDAPStorm logs in with right and wrong passwords at the same time: no log-in gets the
// answer of another one.
func TestLDAPStorm(t *testing.T) {
	t.Parallel()
	s := identitytest.StartLDAP(t)
	for i := range 4 {
		s.AddUser(t, fmt.Sprint("user", i), fmt.Sprint("password", i))
	}
	o := options(s)
	o.MaxConns = 6
	d := openDirectory(t, o)
	var all sync.WaitGroup
	for i := range 12 {
		all.Go(func() {
			for j := range 8 {
				name, password := fmt.Sprint("user", i%4), fmt.Sprint("password", j%4)
				id, err := d.Login(t.Context(), name, password)
				if right := i%4 == j%4; right && (err != nil || id.Name != name) || !right && !errors.Is(err, ErrRefused) {
					t.Errorf("%s with %s: %+v, %v", name, password, id, err)
				}
			}
		})
	}
	all.Wait()
	if n := len(d.idle); n < 1 || n > 3 {
		t.Errorf("%d connections are idle, want 1 to 3", n)
	}
}

// TestLDAPStormOfOneAddress: log-ins from one address hold all turns and wait for more. That of
// another address comes next, before those that wait.
func TestLDAPStormOfOneAddress(t *testing.T) {
	t.Parallel()
	s := identitytest.StartLDAP(t)
	s.AddUser(t, "alice", "correct horse")
	o := options(s)
	o.MaxConns = 2 // one log-in
	d := openDirectory(t, o)
	storm := limit.WithCaller(t.Context(), limit.Caller{Account: "mallory", Address: "192.0.2.1"})
	must(t, d.turns.Enter(storm))
	ctx, cancel := context.WithCancel(storm)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	for range 100 {
		all.Go(func() {
			if d.turns.Enter(ctx) == nil { // it keeps its turn until the test ends
				<-ctx.Done()
				d.turns.Leave()
			}
		})
	}
	neighbour := make(chan error, 1)
	go func() {
		_, err := d.Login(limit.WithCaller(t.Context(), limit.Caller{Account: "alice", Address: "192.0.2.2", Known: true}), "alice", "correct horse")
		neighbour <- err
	}()
	waiting := func() int {
		return d.turns.Waiting(limit.Caller{Account: "alice", Address: "192.0.2.2", Known: true})
	}
	for waiting() == 0 {
		runtime.Gosched()
	}
	d.turns.Leave()
	must(t, <-neighbour)
}
