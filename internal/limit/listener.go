package limit

import (
	"cmp"
	"container/list"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// ListenerOptions configure a Listener.
type ListenerOptions struct {
	Most, MostOfClient int // 0: no limit
	// Spare is how many connections are accepted beyond these limits. They are for the requests
	// that must be answered always, such as probes; IsSpare tells them from others.
	Spare int
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
	// MinBodyRate is the rate, in bytes per second, below which a body is slow. 0: none is.
	MinBodyRate int64
	// SlowBodyTime is how long the listener waits for a body's bytes before it may find the body
	// slow. Default 5 s.
	SlowBodyTime time.Duration
	// OverheadRate is how many bytes a second an HTTP/2 connection may bring besides the bodies
	// of requests; more are read more slowly. Connections on which a trusted proxy sends requests
	// of many clients have no such limit. Default 1 MiB.
	OverheadRate int64
	Log          *slog.Logger
	Metrics      *Metrics
}

// Listener accepts connections up to its limits. If the limit of a client is reached, a new
// connection of this client takes the place of the one that has waited longest for the header
// of a request: the first request's, or that of the next one (an idle connection). If the limit
// for all clients is reached, the new connection takes the place of another client's too
// (victim). If no connection waits, the new one gets a spare place, or is refused if there is
// none. A connection whose client sends the
// body of a request, or reads an answer, keeps its place, unless the body is slow.
//
// An accepted connection embeds a *net.TCPConn, so that package net still uses sendfile to
// send files.
type Listener struct {
	net.Listener
	o ListenerOptions

	mu      sync.Mutex
	open    int // connections that count, without those in spare places
	spare   int // connections in spare places
	waiting int // how many of them wait for the header of a request
	clients map[string]*client
	queue   clientQueue
	bodies  list.List // of *conn, see Progress
	logged  time.Time
	missed  int // errors since the last log line
}

// Listen returns a Listener that enforces limits on l.
func Listen(l net.Listener, o ListenerOptions) *Listener {
	o.SlowBodyTime = cmp.Or(o.SlowBodyTime, slowBodyTime)
	o.OverheadRate = cmp.Or(o.OverheadRate, overheadRate)
	return &Listener{Listener: l, o: o, clients: map[string]*client{}}
}

// conn is an accepted connection. It counts for the limits until it is closed, by either side,
// or gives its place to another one.
type conn struct {
	*net.TCPConn
	l        *Listener
	proxy    *proxyConn // nil: the connection doesn't begin with a PROXY protocol header
	wire     wire
	progress Progress
	overhead overhead
	spare    bool        // it has a spare place; set before it is served
	cut      atomic.Bool // the connection gave its place to another one, so reads fail

	// l.mu guards the following fields.
	of      *client
	gone    bool          // it counts no more
	waiting *list.Element // in of.waiting while no request is in progress, else nil
	since   time.Time     // when it began to wait
	body    *list.Element // in l.bodies, or nil
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.l.mu.Lock()
	c.l.remove(c)
	c.l.mu.Unlock()
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
		counted, name := &conn{TCPConn: tcp, l: l}, ""
		counted.progress.c = counted
		switch {
		case !l.o.Proxies.trustedPeer(tcp):
			name = Client(tcp.RemoteAddr().String())
		case l.o.ProxyProtocol:
			counted.proxy = newProxyConn(tcp)
		}
		if l.admit(counted, name) {
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

// admit counts a new connection of the client `name` and returns true. If a limit is reached
// and no other connection can give its place, it refuses the new connection and returns false.
func (l *Listener) admit(c *conn, name string) bool {
	full, victim := l.take(c, name)
	if victim != nil {
		victim.cutOff()
	}
	if full == NotFull {
		return true
	}
	l.refused(c, full)
	c.TCPConn.Close() //nolint:errcheck // nobody uses it
	return false
}

// take counts a new connection of the client `name` and returns NotFull. If it has taken the
// place of another connection, it returns that one, which the caller must cut off. If it finds
// no place, it returns the limit that is reached.
func (l *Listener) take(c *conn, name string) (full Full, victim *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if full := l.full(name); full != NotFull {
		victim = l.victim(name, full)
		switch {
		case victim != nil:
			l.shed(victim, full)
			c.spare = victim.spare
		case l.spare < l.o.Spare:
			c.spare = true
		default:
			return full, nil
		}
	}
	if c.spare {
		l.spare++
	} else {
		l.open++
	}
	l.join(c, name)
	if l.o.Metrics != nil {
		l.o.Metrics.connections.Inc()
	}
	return NotFull, victim
}

// full returns the limit that another connection of the client would exceed. The caller holds
// the lock l.mu.
func (l *Listener) full(name string) Full {
	switch {
	case name != "" && l.o.MostOfClient > 0 && l.clients[name] != nil && l.clients[name].open >= l.o.MostOfClient:
		return ClientFull
	case l.o.Most > 0 && l.open >= l.o.Most:
		return AllFull
	}
	return NotFull
}

// victim returns the connection whose place a new connection of the client `name` takes, nil if
// there is none. If the client's own limit is reached, it is the client's connection that has
// waited longest. Otherwise it is the first that exists of the following:
//
//   - of the client with the most waiting connections, the one that has waited longest, if the
//     client has more than a few (fewWaiting),
//   - the connection that has waited longest of all, if that was longer than `patience`,
//   - a connection that brings the body of a request slowly,
//   - the connection that has waited longest of all, if at least half of the connections wait.
//     If fewer do, most places are taken by requests in progress, and the waiting connections
//     are new ones that will send their headers soon.
//
// The caller holds the lock l.mu.
func (l *Listener) victim(name string, full Full) *conn {
	if full == ClientFull {
		return l.clients[name].longest()
	}
	now := time.Now()
	var longest *conn
	if len(l.queue) > 0 {
		first := l.queue[0]
		longest = first.longest()
		if first.rank() > first.few || now.Sub(longest.since) > patience {
			return longest
		}
	}
	if slow := l.slowBody(now); slow != nil {
		return slow
	}
	if 2*l.waiting < l.open {
		return nil
	}
	return longest
}

// shed ends the count of a connection whose place another one takes. The caller holds the lock
// l.mu; it must call victim.cutOff after it has released the lock.
func (l *Listener) shed(victim *conn, full Full) {
	switch {
	case victim.waiting == nil:
		l.o.Metrics.Refused(BodyRate)
	case full == ClientFull:
		l.o.Metrics.Refused(ShedClientConnections)
	default:
		l.o.Metrics.Refused(ShedConnections)
	}
	victim.cut.Store(true)
	l.remove(victim)
}

// cutOff shuts a connection down in both directions. Its pending read fails, upon which
// http.Server closes it. Close would wait until that read has ended.
func (c *conn) cutOff() {
	c.TCPConn.CloseRead()  //nolint:errcheck // it may be closed already
	c.TCPConn.CloseWrite() //nolint:errcheck // likewise
}

// join counts a connection for the client `name`. The caller holds the lock l.mu.
func (l *Listener) join(c *conn, name string) {
	of := l.clients[name]
	if of == nil {
		of = &client{name: name, few: fewWaiting(l.o.Most)}
		l.clients[name] = of
	}
	of.open++
	c.of = of
}

// part reverses join, and c doesn't wait any more. The caller holds the lock l.mu.
func (l *Listener) part(c *conn) {
	l.endWait(c)
	if c.of.open--; c.of.open == 0 {
		delete(l.clients, c.of.name)
	}
}

// remove ends the count of a connection, if it still counts. The caller holds the lock l.mu.
func (l *Listener) remove(c *conn) {
	if c.gone {
		return
	}
	c.gone = true
	l.unlistBody(c)
	l.part(c)
	if c.spare {
		l.spare--
	} else {
		l.open--
	}
	if l.o.Metrics != nil {
		l.o.Metrics.connections.Dec()
	}
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

// setWaiting notes whether a connection waits for the header of a request.
func (l *Listener) setWaiting(c *conn, waits bool) {
	var now time.Time
	if waits {
		now = time.Now()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case c.gone:
	case !waits:
		l.endWait(c)
	case c.waiting == nil:
		l.unlistBody(c)
		l.beginWait(c, now)
	}
}

// ConnState must be set as http.Server.ConnState: from it the listener learns which connections
// wait for a request's header. net/http reports StateActive when it has read the whole header,
// so a connection is new or idle until then. This is so during the TLS handshake too, and on
// HTTP/2 connections without a request.
func (l *Listener) ConnState(nc net.Conn, state http.ConnState) {
	c, ok := unwrap(nc)
	if !ok {
		return
	}
	if state == http.StateActive && isHTTP2(nc) && (c.proxy != nil || !l.o.Proxies.trustedPeer(c.TCPConn)) {
		c.overhead.start(l.o.OverheadRate)
	}
	l.setWaiting(c, state == http.StateNew || state == http.StateIdle)
	if state == http.StateIdle {
		c.wire.next()
	}
}

// isHTTP2 says whether a connection, whose handshake is over, is one of HTTP/2.
func isHTTP2(nc net.Conn) bool {
	t, ok := nc.(*tls.Conn)
	return ok && t.ConnectionState().NegotiatedProtocol == "h2"
}

// unwrap returns the Listener's connection of a connection that http.Server uses.
func unwrap(nc net.Conn) (*conn, bool) {
	if t, ok := nc.(*tls.Conn); ok {
		nc = t.NetConn()
	}
	c, ok := nc.(*conn)
	return c, ok
}
