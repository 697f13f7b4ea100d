package limit_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/limit"
)

// TestSparePlaces: connections beyond the limit get spare places, which the server can tell from
// others, and no more than there are. A spare place that becomes free is spare again, however
// it becomes so, and an ordinary place isn't taken by them.
func TestSparePlaces(t *testing.T) {
	t.Parallel()
	l := limit.Listen(listen(t), limit.ListenerOptions{Most: 2, Spare: 2, Plain: true, Log: slog.New(slog.DiscardHandler)})
	defer l.Close() //nolint:errcheck // nobody accepts then
	accepted := make(chan net.Conn)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	next := func(wantSpare bool) net.Conn {
		t.Helper()
		dial(t, l)
		c := <-accepted
		r, err := http.NewRequestWithContext(l.ConnContext(context.Background(), c), "GET", "/", nil)
		if err != nil {
			t.Fatal(err)
		}
		if limit.IsSpare(r) != wantSpare {
			t.Errorf("spare: %v", !wantSpare)
		}
		return c
	}
	refused := func() {
		t.Helper()
		text, err := io.ReadAll(dial(t, l))
		if err != nil || !strings.HasPrefix(string(text), "HTTP/1.1 503 ") {
			t.Errorf("a connection beyond all places reads %q, %v", text, err)
		}
	}
	first, _ := next(false), next(false)
	third, fourth := next(true), next(true)
	refused()
	fourth.Close() //nolint:errcheck // its place is free
	fourth = next(true)
	refused()
	// A connection that waits gives its place, spare or not, to the next.
	l.ConnState(third, http.StateIdle)
	l.ConnState(fourth, http.StateIdle)
	next(true)
	next(true)
	refused()
	first.Close() //nolint:errcheck // its place is free
	next(false)
	refused()
}
