package dbtest

import (
	"io"
	"net"
	"net/url"
	"path/filepath"
	"sync"
	"testing"
)

// Proxy forwards connections to PostgreSQL. It can go silent: then it drops all data from
// client and server and closes no connection, as happens on a network when a machine has
// vanished.
type Proxy struct {
	// DSN connects through the proxy.
	DSN string

	listener net.Listener
	server   string // the path of PostgreSQL's socket

	mu     sync.Mutex
	conns  []net.Conn
	silent chan struct{} // closed while the proxy is silent
	refuse bool
	ended  bool
	copies sync.WaitGroup
}

// NewProxy starts a proxy for the test's database dsn and stops it when the test ends.
func NewProxy(t testing.TB, dsn string) *Proxy {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	p := &Proxy{listener: l, server: filepath.Join(q.Get("host"), ".s.PGSQL."+q.Get("port")), silent: make(chan struct{})}
	host, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	q.Set("host", host)
	q.Set("port", port)
	u.RawQuery = q.Encode()
	p.DSN = u.String()
	p.copies.Go(p.accept)
	t.Cleanup(p.Stop)
	return p
}

// Silence makes the proxy drop all data from now on, on existing and on later connections.
func (p *Proxy) Silence() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.silent)
}

// Refuse makes the proxy close each new connection at once, as if there were no server, or, if
// `refuse` is false, forward new connections again.
func (p *Proxy) Refuse(refuse bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = refuse
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		refuse := p.refuse
		p.mu.Unlock()
		if refuse {
			client.Close()
			continue
		}
		server, err := net.Dial("unix", p.server)
		if err != nil {
			client.Close()
			continue
		}
		p.mu.Lock()
		if p.ended {
			p.mu.Unlock()
			client.Close()
			server.Close()
			return
		}
		p.conns = append(p.conns, client, server)
		p.mu.Unlock()
		p.copies.Go(func() { p.copy(server, client) })
		p.copies.Go(func() { p.copy(client, server) })
	}
}

// copy forwards data from one end to the other until one of them closes. While the proxy is
// silent, copy forwards nothing and doesn't pass on that an end has closed.
func (p *Proxy) copy(to, from net.Conn) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if p.isSilent() {
			if err != nil {
				return
			}
			continue
		}
		if n > 0 {
			if _, werr := to.Write(buf[:n]); werr != nil {
				return
			}
		}
		if err != nil {
			if err == io.EOF {
				to.Close()
			}
			return
		}
	}
}

func (p *Proxy) isSilent() bool {
	select {
	case <-p.silent:
		return true
	default:
		return false
	}
}

// Stop closes all connections and accepts no more. A test calls it before it closes its pools,
// since closing a pool would wait for the answers of a silent server.
func (p *Proxy) Stop() {
	p.mu.Lock()
	p.ended = true
	p.listener.Close()
	for _, c := range p.conns {
		c.Close()
	}
	p.mu.Unlock()
	p.copies.Wait()
}
