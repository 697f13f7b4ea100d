package limit

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

// TestTurns: one client sends five costly requests, and then another sends one. One request may
// run at a time, and the other client's must run second.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := NewTurns(1)
		ended := make(chan struct{})
		var order []string
		request := func(client string) {
			go func() {
				done, err := turns.Wait(t.Context(), client)
				if err != nil {
					t.Error(err)
					return
				}
				order = append(order, client) // the race detector finds two that run at once
				<-ended
				done()
			}()
			synctest.Wait()
		}
		for range 5 {
			request("many")
		}
		request("one")
		for range 6 {
			ended <- struct{}{}
			synctest.Wait()
		}
		if len(order) != 6 || order[0] != "many" || order[1] != "one" {
			t.Errorf("the order was %v", order)
		}
		if n := len(turns.clients); n != 0 {
			t.Errorf("%d clients are still known", n)
		}
	})
}

// TestTurnsGivenUp: requests give up while they wait for the request before them. They must not
// keep later ones from running.
func TestTurnsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := NewTurns(1)
		done, err := turns.Wait(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		for _, client := range []string{"a", "b"} { // behind a's request; as b's first
			ctx, cancel := context.WithCancel(t.Context())
			gaveUp := make(chan error, 1)
			go func() {
				_, err := turns.Wait(ctx, client)
				gaveUp <- err
			}()
			synctest.Wait()
			cancel()
			if err := <-gaveUp; !errors.Is(err, context.Canceled) {
				t.Errorf("%s: error %v", client, err)
			}
		}
		done()
		for _, client := range []string{"a", "b"} {
			done, err := turns.Wait(t.Context(), client)
			if err != nil {
				t.Fatal(err)
			}
			done()
		}
		if n := len(turns.clients); n != 0 {
			t.Errorf("%d clients are still known", n)
		}
	})
}

// TestTurnsOfTwoKinds: two accounts send requests for one namespace, and a third one sends a request
// for another namespace. The first two take one of the two places only, so the third one's runs.
func TestTurnsOfTwoKinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := NewTurns(2)
		running := make(chan string, 5)
		ended := make(chan struct{})
		for _, client := range []string{"a acme", "a acme", "b acme", "b acme", "c other"} {
			go func() {
				done, err := turns.Wait(t.Context(), "account "+client[:1], "namespace "+client[2:])
				if err != nil {
					t.Error(err)
					return
				}
				running <- client
				<-ended
				done()
			}()
			synctest.Wait()
		}
		if n := len(running); n != 2 {
			t.Errorf("%d requests run, want 2", n)
		}
		for _, want := range []string{"a acme", "c other"} {
			if got := <-running; got != want {
				t.Errorf("%s runs, want %s", got, want)
			}
		}
		close(ended)
		synctest.Wait()
		if n := len(turns.clients); len(running) != 3 || n != 0 {
			t.Errorf("%d of the other three ran, and %d clients are still known", len(running), n)
		}
	})
}
