package servertest

import (
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
)

// Gate is a TCP proxy between a registry and its database. A test can shut the gate to make the
// database unreachable for the registry.
type Gate struct {
	net.Listener
	network, to string

	mu    sync.Mutex
	shut  bool
	conns map[net.Conn]bool
	wg    sync.WaitGroup
}

// NewGate returns an open gate in front of the database with the connection string `dsn`, and a
// connection string that leads through the gate.
func NewGate(t *testing.T, dsn string) (*Gate, string) {
	t.Helper()
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &Gate{Listener: l, network: "tcp", to: net.JoinHostPort(cfg.Host, strconv.Itoa(int(cfg.Port))), conns: map[net.Conn]bool{}}
	if strings.HasPrefix(cfg.Host, "/") {
		g.network, g.to = "unix", filepath.Join(cfg.Host, fmt.Sprintf(".s.PGSQL.%d", cfg.Port))
	}
	g.wg.Go(g.serve)
	t.Cleanup(func() {
		g.Set(true)
		l.Close() //nolint:errcheck // ends serve
		g.wg.Wait()
	})
	return g, fmt.Sprintf("host=127.0.0.1 port=%d user=%s password='%s' dbname=%s sslmode=disable",
		l.Addr().(*net.TCPAddr).Port, cfg.User, cfg.Password, cfg.Database)
}

func (g *Gate) serve() {
	for {
		c, err := g.Accept()
		if err != nil {
			return
		}
		g.wg.Go(func() { g.join(c) })
	}
}

func (g *Gate) join(c net.Conn) {
	defer c.Close() //nolint:errcheck // its end is all that matters
	s, err := net.Dial(g.network, g.to)
	if err != nil {
		return
	}
	defer s.Close() //nolint:errcheck
	g.mu.Lock()
	if g.shut {
		g.mu.Unlock()
		return
	}
	g.conns[c], g.conns[s] = true, true
	g.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { io.Copy(s, c); s.Close() }) //nolint:errcheck
	both.Go(func() { io.Copy(c, s); c.Close() }) //nolint:errcheck
	both.Wait()
	g.mu.Lock()
	delete(g.conns, c)
	delete(g.conns, s)
	g.mu.Unlock()
}

// Set opens the gate or, if `shut` is true, shuts it. Shutting it breaks all connections
// through the gate.
func (g *Gate) Set(shut bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = shut
	if shut {
		for c := range g.conns {
			c.Close() //nolint:errcheck
		}
	}
}
