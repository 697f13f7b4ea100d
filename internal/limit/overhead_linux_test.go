package limit_test

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"syscall"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/limit"
)

// overTLS starts a server with TLS that reads bodies and answers with as much.
func overTLS(t *testing.T, rate int64) *httptest.Server {
	t.Helper()
	inner := listen(t)
	socket, err := inner.(*net.TCPListener).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	// Connections inherit it: what the kernel has and the server hasn't read is little.
	if err := socket.Control(func(fd uintptr) { syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 64<<10) }); err != nil { //nolint:errcheck // the test's figures would say it
		t.Fatal(err)
	}
	l := limit.Listen(inner, limit.ListenerOptions{OverheadRate: rate, Log: slog.New(slog.DiscardHandler)})
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		progress, buffer := limit.ProgressOf(r.Context()), make([]byte, 32<<10)
		for {
			n, err := r.Body.Read(buffer)
			progress.Useful(n)
			if err != nil {
				return
			}
			w.Write(buffer[:n]) //nolint:errcheck // the client is gone
		}
	}))
	srv.Config.ConnState, srv.Config.ConnContext = l.ConnState, l.ConnContext
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	srv.EnableHTTP2 = true
	srv.Listener.Close() //nolint:errcheck // ours takes its place
	srv.Listener = l
	srv.StartTLS()
	t.Cleanup(srv.Close)
	return srv
}

// frame returns a frame of HTTP/2.
func frame(kind, flags byte, stream uint32, payload ...byte) []byte {
	head := []byte{byte(len(payload) >> 16), byte(len(payload) >> 8), byte(len(payload)), kind, flags, 0, 0, 0, 0}
	binary.BigEndian.PutUint32(head[5:], stream)
	return append(head, payload...)
}

// TestFloodOfFrames: a client sends frames that have no limit of their own, while a request of it is
// in progress: empty CONTINUATION frames, pings, empty pieces of a body. The server reads them no
// faster than its limit, so that one connection doesn't keep a core busy.
func TestFloodOfFrames(t *testing.T) {
	t.Parallel()
	const rate, seconds = 64 << 10, 2
	const ( // kinds and flags
		data, headers, settings, ping, continuation = 0, 1, 4, 6, 9
		endHeaders                                  = 4
	)
	header := []byte{0x83, 0x86, 0x84} // POST http /
	for name, flood := range map[string]struct{ begin, frame []byte }{
		"continuation": {frame(headers, 0, 3, header...), frame(continuation, 0, 3)},
		"ping":         {nil, frame(ping, 1, 0, make([]byte, 8)...)}, // an acknowledgement, which isn't answered
		"data":         {nil, frame(data, 0, 1)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := overTLS(t, rate)
			raw, err := new(net.Dialer).DialContext(t.Context(), "tcp", srv.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer raw.Close()                           //nolint:errcheck // the server has nothing for us
			raw.(*net.TCPConn).SetWriteBuffer(16 << 10) //nolint:errcheck // what is on its way doesn't count
			c := tls.Client(raw, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
			begin := append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), frame(settings, 0, 0)...)
			begin = append(append(begin, frame(headers, endHeaders, 1, header...)...), flood.begin...)
			if _, err := c.Write(begin); err != nil {
				t.Fatal(err)
			}
			go io.Copy(io.Discard, c) //nolint:errcheck // until the connection is closed
			many, sent := bytes.Repeat(flood.frame, 1000), 0
			c.SetWriteDeadline(time.Now().Add(seconds * time.Second)) //nolint:errcheck // the write says it
			for err == nil {
				var n int
				n, err = c.Write(many)
				sent += n
			}
			// Besides what the limit allows, some is in the buffers of the kernel.
			if most := rate*(4+seconds) + 512<<10; sent > most {
				t.Errorf("the server took %d bytes in %d s, want at most %d", sent, seconds, most)
			}
			if sent < rate {
				t.Errorf("the server took %d bytes only: %v", sent, err)
			}
		})
	}
}

// TestBodiesAreNoOverhead: a client sends and gets much more than the limit is for other things, as
// fast as it can.
func TestBodiesAreNoOverhead(t *testing.T) {
	t.Parallel()
	srv := overTLS(t, 512<<10)
	const size = 48 << 20 // 96 s at that rate
	ctx := t.Context()
	r, err := http.NewRequestWithContext(ctx, "POST", srv.URL, io.LimitReader(zeros{}, size))
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	res, err := srv.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close() //nolint:errcheck // read to its end
	n, err := io.Copy(io.Discard, res.Body)
	if took := time.Since(begin); n != size || err != nil || res.ProtoMajor != 2 || took > time.Minute {
		t.Errorf("%d bytes by %s in %s, %v", n, res.Proto, took, err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }
