package limit

import (
	"container/list"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"
)

// ListenerOptions configure a Listener.
type ListenerOptions struct {
	Most, MostOfClient int // 0: no limit
	// Plain says that clients send HTTP without TLS. Then a refused client gets an answer that
	// says why.
	Plain bool
	// Proxies are the trusted proxies. The limit per client doesn't apply to a proxy's
	// connections, which carry the requests of many clients.
	Proxies *Proxies
	// ProxyProtocol says that connections of trusted proxies begin with a PROXY protocol
	// header, version 1 or 2, which names the client. Then that client's limit applies to the
	// connection.
	ProxyProtocol bool
	// ProxyHeaderTime is how long the listener waits for the PROXY protocol header. Default 5
	// s.
	ProxyHeaderTime time.Duration
	// ErrorBody returns the JSON body of an error answer that no handler writes, for a request
	// with this path. If it is nil, the body has the format of the OCI Distribution
	// Specification.
	ErrorBody func(path string, status int, message string) []byte
	Log       *slog.Logger
	Metrics   *Metrics
}

// Listener accepts connections up to its limits. If the limit of a client is reached, it
// closes that connection of the client that has been idle for longest, and accepts the new
// one; if the limit for all clients is reached, it chooses among all connections. If none
// of these connections is idle, it refuses the new one.
//
// An accepted connection embeds a *net.TCPConn, so that package net still uses sendfile to
// send files.
type Listener struct {
	net.Listener
	o       ListenerOptions
	counter *Counter

	mu     sync.Mutex
	idle   *list.List // of *conn; the one that has been idle for longest comes first
	logged time.Time
	missed int // errors since the last log line
}

// Listen returns a Listener that enforces limits on l.
func Listen(l net.Listener, o ListenerOptions) *Listener {
	return &Listener{Listener: l, o: o, counter: NewCounter(o.Most, o.MostOfClient), idle: list.New()}
}

// conn is an accepted connection; it counts for the limits until it is closed.
type conn struct {
	*net.TCPConn
	l     *Listener
	once  sync.Once
	proxy *proxyConn // nil: the connection doesn't begin with a PROXY protocol header
	wire  wire

	// l.mu guards the following fields.
	client string // "": a proxy's connection, of many clients or of one that isn't known yet
	closed bool
	idle   *list.Element
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.once.Do(func() {
		c.l.setIdle(c, false)
		c.l.mu.Lock()
		c.closed = true
		c.l.counter.Done(c.client)
		c.l.mu.Unlock()
		if c.l.o.Metrics != nil {
			c.l.o.Metrics.connections.Dec()
		}
	})
	return c.TCPConn.Close()
}

const (
	acceptDescriptors = "descriptors"
	acceptOther       = "other"
	acceptProxyHeader = "proxy_header"
	// logEvery is the least time between two lines that the listener writes to the
	// program's log about connections that can't be served.
	logEvery = 10 * time.Second
)

// Accept implements net.Listener. If it returns an error, http.Server calls it again, after a
// pause of up to a second.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			l.failed(err)
			return nil, err
		}
		tcp, ok := c.(*net.TCPConn)
		if !ok {
			return c, nil
		}
		counted := &conn{TCPConn: tcp, l: l}
		switch {
		case !l.o.Proxies.trustedPeer(tcp):
			counted.client = Client(tcp.RemoteAddr().String())
		case l.o.ProxyProtocol:
			counted.proxy = newProxyConn(tcp)
		}
		if l.admit(counted) {
			return counted, nil
		}
	}
}

// failed counts an error of Accept in the metrics. It logs the error unless such an error was
// logged less than logEvery ago.
func (l *Listener) failed(err error) {
	if errors.Is(err, net.ErrClosed) {
		return
	}
	reason := acceptOther
	if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
		reason = acceptDescriptors
	}
	text := "connections can't be accepted"
	if reason == acceptDescriptors {
		text = "out of file descriptors: connections wait. Raise the limit of open files (ulimit -n, LimitNOFILE), or lower http.max_connections"
	}
	l.report(slog.LevelError, reason, text, err)
}

// report counts an event that prevents a connection from being served. It logs the event unless
// such an event was logged less than logEvery ago.
func (l *Listener) report(level slog.Level, reason, text string, err error) {
	if l.o.Metrics != nil {
		l.o.Metrics.acceptErrors.WithLabelValues(reason).Inc()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.missed++
	if time.Since(l.logged) < logEvery {
		return
	}
	l.o.Log.Log(context.Background(), level, text, "address", l.Addr().String(), "times", l.missed, "error", err)
	l.logged, l.missed = time.Now(), 0
}

// admit counts a new connection and returns true. If a limit is reached and no idle connection
// can be closed, it refuses the new connection and returns false.
func (l *Listener) admit(c *conn) bool {
	full := l.counter.Add(c.client)
	if full != NotFull && l.closeIdle(c.client, full) {
		full = l.counter.Add(c.client)
	}
	if full == NotFull {
		if l.o.Metrics != nil {
			l.o.Metrics.connections.Inc()
		}
		return true
	}
	l.refused(c, full)
	c.TCPConn.Close() //nolint:errcheck // nobody uses it
	return false
}

// refused counts a refused connection in the metrics and, without TLS, tells the client why.
func (l *Listener) refused(c *conn, full Full) {
	if full == ClientFull {
		l.o.Metrics.Refused(ClientConnections)
	} else {
		l.o.Metrics.Refused(Connections)
	}
	if l.o.Plain {
		c.tell(tooMany)
	}
}

// tell writes an answer as the first data of a connection. It doesn't block, since the send
// buffer of a new socket has enough space.
func (c *conn) tell(answer []byte) {
	c.TCPConn.SetWriteDeadline(time.Now().Add(time.Second)) //nolint:errcheck // best effort
	c.TCPConn.Write(answer)                                 //nolint:errcheck // likewise
}

var tooMany = []byte("HTTP/1.1 503 Service Unavailable\r\nRetry-After: 2\r\nConnection: close\r\n" +
	"Content-Type: application/json\r\nContent-Length: 78\r\n\r\n" +
	`{"errors":[{"code":"UNAVAILABLE","message":"there are too many connections"}]}`)

// closeIdle closes the connection that has been idle for longest: among all connections if
// `full` is AllFull, else among the client's. It returns false if none of these is idle.
func (l *Listener) closeIdle(client string, full Full) bool {
	l.mu.Lock()
	var found *conn
	for e := l.idle.Front(); e != nil && found == nil; e = e.Next() {
		if c := e.Value.(*conn); full == AllFull || c.client == client {
			found = c
		}
	}
	l.mu.Unlock()
	if found == nil {
		return false
	}
	found.Close() //nolint:errcheck // it is idle, so its client loses nothing
	return true
}

func (l *Listener) setIdle(c *conn, idle bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case idle && c.idle == nil:
		c.idle = l.idle.PushBack(c)
	case !idle && c.idle != nil:
		l.idle.Remove(c.idle)
		c.idle = nil
	}
}

// ConnState must be set as http.Server.ConnState: from it the listener learns which
// connections are idle.
func (l *Listener) ConnState(nc net.Conn, state http.ConnState) {
	if t, ok := nc.(*tls.Conn); ok {
		nc = t.NetConn()
	}
	if c, ok := nc.(*conn); ok {
		l.setIdle(c, state == http.StateIdle)
		if state == http.StateIdle {
			c.wire.next()
		}
	}
}
