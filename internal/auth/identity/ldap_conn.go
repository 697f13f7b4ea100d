package identity

import (
	"context"
	"crypto/tls"
	"net"
	"time"

	"github.com/go-ldap/ldap/v3"
)

// directoryConn is a connection to a directory. One goroutine at a time uses it.
type directoryConn struct {
	*ldap.Conn
	raw    net.Conn
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
	err := fn()
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
	raw, err := (&net.Dialer{}).DialContext(ctx, "tcp", d.address)
	if err != nil {
		return nil, unavailable("connecting", err)
	}
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
