package e2e

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/testscale"
)

// redisServer is a Redis or Valkey that a test can kill and start again. It keeps all writes
// that it has acknowledged.
type redisServer struct {
	t       testing.TB
	program string
	dir     string
	p       *process
}

// startRedis starts an empty Redis, which is stopped at the end of the test.
func startRedis(t testing.TB) *redisServer {
	t.Helper()
	s := &redisServer{t: t, dir: newDir(t)}
	for _, name := range []string{"redis-server", "valkey-server"} {
		if path, err := exec.LookPath(name); err == nil {
			s.program = path
		}
	}
	if s.program == "" {
		lacking(t, "redis-server isn't installed (tools/packages installs it)")
	}
	t.Cleanup(func() {
		if s.p != nil {
			s.p.kill()
		}
	})
	s.Start()
	return s
}

func (s *redisServer) socket() string { return filepath.Join(s.dir, "sock") }

// Start starts Redis on its existing data.
func (s *redisServer) Start() {
	s.t.Helper()
	p, err := startProcess("redis", exec.Command(s.program, "--port", "0", "--unixsocket", s.socket(), "--dir", s.dir,
		"--save", "", "--appendonly", "yes", "--appendfsync", "always", "--daemonize", "no"))
	if err != nil {
		s.t.Fatal(err)
	}
	s.p = p
	if err := p.waitFor(s.t.Context(), time.Minute, s.ready); err != nil {
		s.t.Fatal(err)
	}
}

// ready returns nil if Redis answers, which means that it has loaded its data.
func (s *redisServer) ready(ctx context.Context) error {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", s.socket())
	if err != nil {
		return err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	conn.SetDeadline(deadline) //nolint:errcheck // the answer is waited for with ctx
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return err
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err == nil && !strings.HasPrefix(line, "+PONG") {
		err = errors.New(line)
	}
	return err
}

// env returns the settings with which a registry counts pulls in this Redis.
func (s *redisServer) env() []string {
	return []string{"PURSER_PULL_STATISTICS_REDIS=true", "PURSER_REDIS_URL=unix://" + s.socket()}
}

// splitHeads returns a proxy in front of two registries. It sends HEAD requests to the
// registry `heads` and all other requests to the registry `rest`.
func splitHeads(t testing.TB, heads, rest *registry) *registry {
	t.Helper()
	proxy := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		to := rest
		if r.In.Method == http.MethodHead {
			to = heads
		}
		r.Out.URL.Scheme, r.Out.URL.Host = "http", to.host
		r.Out.Host = r.In.Host
	}})
	t.Cleanup(proxy.Close)
	u, err := url.Parse(proxy.URL)
	if err != nil {
		t.Fatal(err)
	}
	return &registry{t: t, host: u.Host}
}

// Clients pull through a load balancer that sends the HEAD and the GET of a pull to different
// replicas. The test expects that the two requests together count as one pull.
func TestPullsThroughReplicas(t *testing.T) {
	for _, name := range []string{"crane", "regctl", "containerd"} {
		if !testscale.All && name != "crane" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			beginOwn(t)
			s := newPullScene(t, 2, startRedis(t).env()...)
			p := pullers[name](t, splitHeads(t, s.replicas[0], s.replicas[1]))
			s.byTag(p)
			s.byTagThenDigest(p)
			s.byDigest(p)
			s.index(p)
		})
	}
}
