package limit

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/pires/go-proxyproto"
	"github.com/pires/go-proxyproto/tlvparse"
)

const (
	// proxyHeaderTime is the default of ListenerOptions.ProxyHeaderTime. Proxies send
	// the header immediately.
	proxyHeaderTime = 5 * time.Second
	// turnAwayTime is how long the server reads the remaining data of a refused client. If the
	// server closed the connection with unread data, the client might not see the answer.
	turnAwayTime = 500 * time.Millisecond
)

// proxyConn reads the PROXY protocol header at the beginning of a proxy's connection.
type proxyConn struct {
	once   sync.Once
	in     *bufio.Reader // nil once its buffered bytes are read
	client *net.TCPAddr  // nil: the connection is the proxy's own
	err    error
	// encrypted says that the client uses TLS, by the extension PP2_TYPE_SSL of version 2.
	encrypted bool
}

func newProxyConn(c *net.TCPConn) *proxyConn {
	return &proxyConn{in: bufio.NewReaderSize(c, 256)} // longer than a header without extensions
}

// RemoteAddr returns the client's address, which the PROXY protocol header names. It waits for
// the header. This blocks no other connection, since http.Server calls it in the connection's
// own goroutine.
func (c *conn) RemoteAddr() net.Addr {
	if c.proxy != nil {
		c.proxy.once.Do(c.readHeader)
		if c.proxy.client != nil {
			return c.proxy.client
		}
	}
	return c.TCPConn.RemoteAddr()
}

// readBehindHeader reads the data that follows the PROXY protocol header.
func (c *conn) readBehindHeader(p []byte) (int, error) {
	x := c.proxy
	x.once.Do(c.readHeader)
	switch {
	case x.err != nil:
		return 0, x.err
	case x.in == nil:
		return c.TCPConn.Read(p)
	}
	n := min(len(p), x.in.Buffered())
	if n == 0 && len(p) > 0 {
		x.in = nil
		return c.TCPConn.Read(p)
	}
	return x.in.Read(p[:n])
}

// readHeader reads the PROXY protocol header, and counts the connection for the client that
// the header names. If there is no valid header, later reads from the connection return an
// error.
func (c *conn) readHeader() {
	x := c.proxy
	c.TCPConn.SetReadDeadline(time.Now().Add(cmp.Or(c.l.o.ProxyHeaderTime, proxyHeaderTime))) //nolint:errcheck // without deadlines it waits
	_, err := x.in.Peek(1)
	if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) {
		x.err = io.EOF // a load balancer's health check
		return
	}
	var header *proxyproto.Header
	if err == nil {
		header, err = proxyproto.Read(x.in)
	}
	if err != nil && c.cut.Load() {
		x.err = errCut
		return
	}
	if err != nil {
		c.badHeader(err)
		return
	}
	c.TCPConn.SetReadDeadline(time.Time{}) //nolint:errcheck // as above
	// A proxy sends the command LOCAL for its health checks and for connections whose client
	// it doesn't know.
	if source, _, ok := header.TCPAddrs(); ok && header.Command.IsProxy() {
		x.client = source
		x.encrypted = usesTLS(header)
	}
	if x.client != nil && !c.l.o.Proxies.Trust(x.client.AddrPort().Addr()) {
		c.named(Client(x.client.String()))
	}
}

// usesTLS says whether a header names a client that is connected to the proxy by TLS.
func usesTLS(header *proxyproto.Header) bool {
	extensions, err := header.TLVs()
	if err != nil {
		return false
	}
	ssl, ok := tlvparse.FindSSL(extensions)
	return ok && ssl.ClientSSL()
}

// badHeader refuses a proxy's connection that doesn't begin with a valid PROXY protocol
// header.
func (c *conn) badHeader(err error) {
	c.l.report(slog.LevelWarn, acceptProxyHeader,
		"a connection of a proxy (http.trusted_proxies) is refused, since http.proxy_protocol is set and it doesn't begin with a header of the PROXY protocol that can be read",
		fmt.Errorf("from %s: %w", c.TCPConn.RemoteAddr(), err))
	if c.l.o.Plain {
		c.tell(c.l.errorText("", "400 Bad Request",
			"connections from this address must begin with a header of the PROXY protocol, since it is in http.trusted_proxies and http.proxy_protocol is set"))
	}
	c.turnAway()
}

// named counts the connection for the client that the PROXY protocol header names. If the
// client's limit is reached and none of the client's connections waits for the header of a
// request, it refuses the connection.
func (c *conn) named(name string) {
	l := c.l
	full, victim := l.name(c, name)
	if victim != nil {
		victim.cutOff()
	}
	if full != NotFull {
		l.refused(c, full)
		c.turnAway()
	}
}

// name moves a connection, which was counted for no client, to the client `name`. Its results
// are those of Listener.take.
func (l *Listener) name(c *conn, name string) (full Full, victim *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.gone {
		return NotFull, nil
	}
	if l.full(name) == ClientFull {
		victim = l.victim(name, ClientFull)
		if victim == nil {
			return ClientFull, nil
		}
		l.shed(victim, ClientFull)
	}
	waits := c.waiting != nil
	l.part(c)
	l.join(c, name)
	if waits {
		l.beginWait(c, c.since)
	}
	return NotFull, victim
}

// turnAway ends a connection after its client was told why. It reads what the client still
// sends, for a short time.
func (c *conn) turnAway() {
	c.proxy.err = io.EOF
	c.TCPConn.CloseWrite()                                  //nolint:errcheck // it ends anyway
	c.TCPConn.SetReadDeadline(time.Now().Add(turnAwayTime)) //nolint:errcheck // as above
	io.CopyN(io.Discard, c.TCPConn, 64<<10)                 //nolint:errcheck // as above
}

// beginsWithProxyHeader says whether the data begins with a PROXY protocol header.
func beginsWithProxyHeader(p []byte) bool {
	return bytes.HasPrefix(p, []byte("PROXY ")) || bytes.HasPrefix(p, proxyproto.SIGV2)
}
