package serve

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/worker"
)

var localOnly = config.HTTP{Addr: "127.0.0.1:0"}

// slowListener accepts a connection every 5 ms, as a server does whose processors are busy.
type slowListener struct{ net.Listener }

func (l slowListener) Accept() (net.Conn, error) {
	time.Sleep(5 * time.Millisecond)
	return l.Listener.Accept()
}

// TestDrainAnswersConnectionsThatWait: a client connects before the server is told to stop, and
// sends its request only after that. The kernel has made the connection already, so the client
// can't know that the request wasn't served: it has to be answered. The server accepts slowly, so
// most connections still wait in the kernel's queue then.
func TestDrainAnswersConnectionsThatWait(t *testing.T) {
	t.Parallel()
	socks, err := listen(t.Context(), localOnly, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) })}
	silent, ended := watchSilent(srv), make(chan error, 1)
	go func() { ended <- srv.Serve(slowListener{socks.registry}) }()
	conns := make([]net.Conn, 20) // they are accepted in 100 ms, a fifth of acceptTime
	for i := range conns {
		if conns[i], err = net.Dial("tcp", socks.registry.Addr().String()); err != nil {
			t.Fatal(err)
		}
		defer conns[i].Close() //nolint:errcheck // its answer has been read
	}
	drained := make(chan struct{})
	go func() {
		drain(srv, socks, silent, 10*time.Second, slog.New(slog.DiscardHandler))
		close(drained)
	}()
	var wg sync.WaitGroup
	for i, conn := range conns {
		wg.Go(func() {
			conn.SetDeadline(time.Now().Add(10 * time.Second)) //nolint:errcheck // only for failures
			_, err := fmt.Fprint(conn, "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
			answer, readErr := io.ReadAll(conn)
			if err != nil || readErr != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 201") {
				t.Errorf("connection %d: %v, %v, %q", i, err, readErr, answer)
			}
		})
	}
	wg.Wait()
	<-drained
	if err := <-ended; err != http.ErrServerClosed { //nolint:errorlint // Serve returns it as it is
		t.Error(err)
	}
}

// TestDrainOfManagersSocket: when a server stops that uses a socket of the service manager, it answers
// the request on a connection that it has accepted, although the request comes later, and leaves new
// connections to the next server.
func TestDrainOfManagersSocket(t *testing.T) {
	t.Parallel()
	opened, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	start := func(status int) (*http.Server, *sockets, *silentConns) {
		f, err := opened.(*net.TCPListener).File()
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close() //nolint:errcheck // the listener has a duplicate
		passed, err := net.FileListener(f)
		if err != nil {
			t.Fatal(err)
		}
		host := &manager{sockets: map[string]net.Listener{"http.addr": passed}}
		socks, err := listen(t.Context(), localOnly, host, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })}
		silent := watchSilent(srv)
		go srv.Serve(socks.registry) //nolint:errcheck // drain ends it
		return srv, socks, silent
	}
	connect := func() net.Conn {
		conn, err := net.Dial("tcp", opened.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		conn.SetDeadline(time.Now().Add(10 * time.Second)) //nolint:errcheck // only for failures
		return conn
	}
	answered := func(conn net.Conn, status string) {
		t.Helper()
		defer conn.Close() //nolint:errcheck // its answer has been read
		_, err := fmt.Fprint(conn, "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
		answer, readErr := io.ReadAll(conn)
		if err != nil || readErr != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 "+status) {
			t.Errorf("%v, %v, %q, want status %s", err, readErr, answer, status)
		}
	}
	srv, socks, silent := start(http.StatusCreated)
	before := connect()
	for silent.count() == 0 {
		if err := worker.Sleep(t.Context(), time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
	drained := make(chan struct{})
	go func() {
		drain(srv, socks, silent, 10*time.Second, slog.New(slog.DiscardHandler))
		close(drained)
	}()
	<-socks.passed.stopped
	after := connect()
	answered(before, "201")
	<-drained
	srv, socks, silent = start(http.StatusAccepted)
	answered(after, "202")
	drain(srv, socks, silent, 10*time.Second, slog.New(slog.DiscardHandler))
}

// TestDrainRefusesConnections: whoever connects when the server has stopped accepting is refused,
// and not left without an answer.
func TestDrainRefusesConnections(t *testing.T) {
	t.Parallel()
	socks, err := listen(t.Context(), localOnly, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.NotFoundHandler()}
	silent := watchSilent(srv)
	go srv.Serve(socks.registry) //nolint:errcheck // drain ends it
	drain(srv, socks, silent, 10*time.Second, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if conn, err := new(net.Dialer).DialContext(ctx, "tcp", socks.registry.Addr().String()); err == nil {
		conn.Close()
		t.Error("it accepts connections after drain")
	} else if ctx.Err() != nil {
		t.Errorf("a connection after drain: %v, want it refused", err)
	}
}
