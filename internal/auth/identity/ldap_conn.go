package identity

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/go-ldap/ldap/v3"
)

const (
	// maxLDAPAnswer is how many bytes the answers to one request may have: those of maxGroups groups in one
	// search have a fourth of it.
	maxLDAPAnswer = 4 << 20
	// maxUnasked is how many bytes the directory may send while nothing is asked.
	maxUnasked = 64 << 10
)

// boundedConn fails when it has read more bytes than it may. The library keeps all of an answer in
// memory, however long it is.
type boundedConn struct {
	net.Conn
	left atomic.Int64 // bytes that it may still read
}

func (c *boundedConn) Read(p []byte) (int, error) {
	left := c.left.Load()
	if left <= 0 {
		return 0, fmt.Errorf("the directory has sent more than %d bytes to answer a request, or %d unasked", maxLDAPAnswer, maxUnasked)
	}
	n, err := c.Conn.Read(p[:min(int64(len(p)), left)])
	c.left.Add(-int64(n))
	return n, err
}

// directoryConn is a connection to a directory. One goroutine at a time uses it.
type directoryConn struct {
	*ldap.Conn
	raw    *boundedConn
	broken bool      // it can't be used again
	since  time.Time // when it became idle
}

// do calls fn, which sends requests on the connection and waits for the answers. When ctx ends,
// the connection fails, and so does fn. The library has no other way to end a request early that
// also works while the request is sent.
func (c *directoryConn) do(ctx context.Context, fn func() error) error {
	stop := context.AfterFunc(ctx, func() {
		c.raw.SetDeadline(time.Unix(1, 0)) //nolint:errcheck // it is closed already then
	})
	c.raw.left.Store(maxLDAPAnswer)
	err := fn()
	c.raw.left.Store(maxUnasked)
	// The library's error for a connection that ended while a request waited for its answer has no
	// code. It closes that connection before it returns the error.
	if !stop() || c.IsClosing() || ldap.IsErrorWithCode(err, ldap.ErrorNetwork) {
		c.broken = true
	}
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// dial opens a connection, encrypted if the options say so.
func (d *Directory) dial(ctx context.Context) (*directoryConn, error) {
	tcp, err := (&net.Dialer{}).DialContext(ctx, "tcp", d.address)
	if err != nil {
		return nil, unavailable("connecting", err)
	}
	raw := &boundedConn{Conn: tcp}
	raw.left.Store(maxLDAPAnswer) // for the handshake
	if d.tls != nil && !d.startTLS {
		secure := tls.Client(raw, d.tls)
		if err := secure.HandshakeContext(ctx); err != nil {
			raw.Close() //nolint:errcheck // the handshake's error matters
			return nil, unavailable("connecting by TLS", err)
		}
		c := &directoryConn{Conn: ldap.NewConn(secure, true), raw: raw}
		c.Start()
		return c, nil
	}
	c := &directoryConn{Conn: ldap.NewConn(raw, false), raw: raw}
	c.Start()
	if d.startTLS {
		if err := c.do(ctx, func() error { return c.StartTLS(d.tls) }); err != nil {
			c.Close() //nolint:errcheck // the handshake's error matters
			return nil, unavailable("starting TLS", err)
		}
	}
	return c, nil
}

// service returns a connection on which the service account may search, and whether it was used
// before. The directory may have closed such a connection meanwhile.
func (d *Directory) service(ctx context.Context) (c *directoryConn, reused bool, err error) {
	for {
		select {
		case c := <-d.idle:
			if !c.IsClosing() && time.Since(c.since) < maxIdle {
				return c, true, nil
			}
			c.Close() //nolint:errcheck // nothing is pending
			continue
		default:
		}
		break
	}
	if c, err = d.dial(ctx); err != nil || d.opt.BindDN == "" {
		return c, false, err
	}
	if err := c.do(ctx, func() error { return c.Bind(d.opt.BindDN, d.opt.BindPassword) }); err != nil {
		c.Close() //nolint:errcheck // the bind's error matters
		return nil, false, unavailable("logging in as the service account", err)
	}
	return c, false, nil
}

// release keeps a connection of the service account for later log-ins, if it can be used again.
func (d *Directory) release(c *directoryConn) {
	if !c.broken && !c.IsClosing() {
		c.since = time.Now()
		select {
		case d.idle <- c:
			return
		default:
		}
	}
	c.Close() //nolint:errcheck // nothing is pending
}

// tooMany says whether a search has ended because of its size limit, by the directory or by the library.
func tooMany(err error) bool {
	return ldap.IsErrorWithCode(err, ldap.LDAPResultSizeLimitExceeded) || errors.Is(err, ldap.ErrSizeLimitExceeded)
}
