package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/pires/go-proxyproto"

	"github.com/purser-registry/purser/cmd/purser/internal/serve"
	"github.com/purser-registry/purser/cmd/purser/internal/servetest"
	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/db/dbtest"
)

// clientAt returns an HTTP client that connects from the local address `address`. If
// `source` isn't nil, each connection begins with a PROXY protocol header that names
// `source` as the client.
func clientAt(t *testing.T, address string, source *net.TCPAddr) *http.Client {
	t.Helper()
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := dialer.DialContext(ctx, network, addr)
			if err != nil || source == nil {
				return c, err
			}
			_, err = proxyproto.HeaderProxyFromAddrs(2, source, c.RemoteAddr()).WriteTo(c)
			return c, err
		}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// askOf sends a request with the given headers, which must succeed, and returns the
// answer's body.
func askOf(t *testing.T, c *http.Client, method, url string, headers ...string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	res, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close() //nolint:errcheck // read to its end
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode >= 300 {
		t.Fatalf("%s %s: %s %s %v", method, url, res.Status, text, err)
	}
	return string(text)
}

// lockedBuffer is a log to which several goroutines write.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func startLogged(t *testing.T, cfg *config.Config) (*servetest.Server, *lockedBuffer) {
	t.Helper()
	log := new(lockedBuffer)
	return servetest.Start(t, func(ctx context.Context, out io.Writer) error {
		return serve.Run(ctx, cfg, out, slog.New(slog.NewTextHandler(log, nil)), nil)
	}), log
}

// TestServeBehindProxy: a client's requests come through a trusted proxy that writes
// X-Forwarded-For. The audit log, the request log and the matching of a HEAD request with
// its GET must use the client's address, even if the client itself sends a header with
// another address.
func TestServeBehindProxy(t *testing.T) {
	t.Parallel()
	dsn := dbtest.DSN(t)
	s, log := startLogged(t, servetest.Config(t, "PURSER_DATABASE_MAIN="+dsn, "PURSER_AUTH_ENABLED=false", "PURSER_HTTP_TRUSTED_PROXIES=127.0.0.1", "PURSER_PULL_STATISTICS_INTERVAL=1h"))
	target, err := url.Parse(s.Registry)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.Header["X-Forwarded-For"] = r.In.Header["X-Forwarded-For"] // as nginx's $proxy_add_x_forwarded_for
		r.SetXForwarded()
	}})
	t.Cleanup(proxy.Close)
	d := putIndex(t, s, "acme/app", "first", "1")
	putIndex(t, s, "acme/app", "second", "1")
	one, other := clientAt(t, "127.0.0.2", nil), clientAt(t, "127.0.0.3", nil)
	manifests := proxy.URL + "/v2/acme/app/manifests/"
	askOf(t, one, "HEAD", manifests+"first", "X-Forwarded-For", "198.51.100.7")
	askOf(t, other, "HEAD", manifests+"second")
	askOf(t, one, "GET", manifests+d.String(), "Forwarded", "for=127.0.0.2")
	askOf(t, other, "DELETE", proxy.URL+"/api/v1/repository/acme/app/tag/second", "X-Forwarded-For", "198.51.100.7")
	askOf(t, clientAt(t, "127.0.0.4", nil), "DELETE", s.Registry+"/api/v1/repository/acme/app/tag/first", "X-Forwarded-For", "198.51.100.7")
	flush(t, s, 1)
	db := dbtest.Open(t, dsn)
	for sql, want := range map[string]string{
		"SELECT string_agg(address || ' ' || tag, ', ' ORDER BY tag) FROM auditlog WHERE kind = 'delete_tag'": "127.0.0.4 first, 127.0.0.3 second",
		"SELECT string_agg(address, ', ') FROM auditlog WHERE kind = 'pull_repo'":                             "127.0.0.2",
	} {
		var got string
		if err := db.Pool.QueryRow(t.Context(), sql).Scan(&got); err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", sql, got, err, want)
		}
	}
	servetest.WaitFor(t, "the pull is counted for the tag that its client has asked for", func() bool {
		flush(t, s, 1)
		var got string
		err := db.Pool.QueryRow(t.Context(), "SELECT coalesce(string_agg(tag_name, ' '), '') FROM tagpullstatistics WHERE tag_pull_count > 0").Scan(&got)
		if err != nil || got != "" && got != "first" {
			t.Fatalf("counted for %s, %v", got, err)
		}
		return got == "first"
	})
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`client.address=127\.0\.0\.2 .* network.peer.address=127\.0\.0\.1\n`, `client.address=127\.0\.0\.4 .* client.port=[0-9]+\n`} {
		if !regexp.MustCompile(want).MatchString(log.String()) {
			t.Errorf("the log lacks %q:\n%s", want, log.String())
		}
	}
	if strings.Contains(log.String(), "198.51.100.7") {
		t.Errorf("the log has an address that was made up:\n%s", log.String())
	}
}

// TestServeProxyProtocol: the server takes a client's address from the PROXY protocol
// header of the connection, with and without TLS. If that address is a trusted proxy's, it
// takes the address from the header of the HTTP request.
func TestServeProxyProtocol(t *testing.T) {
	t.Parallel()
	for _, useTLS := range []bool{false, true} {
		t.Run(fmt.Sprintf("TLS=%v", useTLS), func(t *testing.T) {
			t.Parallel()
			dsn := dbtest.DSN(t)
			environ := []string{"PURSER_DATABASE_MAIN=" + dsn, "PURSER_AUTH_ENABLED=false", "PURSER_HTTP_TRUSTED_PROXIES=127.0.0.1, 10.0.0.0/8", "PURSER_HTTP_PROXY_PROTOCOL=true"}
			if useTLS {
				dir := t.TempDir()
				files := config.TLS{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
				servetest.WriteCertificate(t, files, 1)
				environ = append(environ, "PURSER_HTTP_TLS_CERT="+files.Cert, "PURSER_HTTP_TLS_KEY="+files.Key)
			}
			s, log := startLogged(t, servetest.Config(t, environ...))
			names := s.Registry + "/api/v1/organization"
			client := clientAt(t, "127.0.0.1", &net.TCPAddr{IP: net.ParseIP("198.51.100.1"), Port: 4000})
			chained := clientAt(t, "127.0.0.1", &net.TCPAddr{IP: net.ParseIP("10.1.2.3"), Port: 4000})
			direct := clientAt(t, "127.0.0.2", nil)
			for name, c := range map[string]*http.Client{"client": client, "chained": chained, "direct": direct} {
				req, err := http.NewRequestWithContext(t.Context(), "POST", names, strings.NewReader(`{"name": "`+name+`"}`))
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("Content-Type", "application/json")
				req.Header.Set("X-Forwarded-For", "203.0.113.9")
				res, err := c.Do(req)
				if err != nil {
					t.Fatalf("%s: %v\n%s", name, err, log.String())
				}
				res.Body.Close() //nolint:errcheck // of no interest
				if res.StatusCode != 201 {
					t.Errorf("%s: %s", name, res.Status)
				}
			}
			var got string
			const sql = "SELECT string_agg(namespace || ' ' || address, ', ' ORDER BY namespace) FROM auditlog WHERE kind = 'org_create'"
			if err := dbtest.Open(t, dsn).Pool.QueryRow(t.Context(), sql).Scan(&got); err != nil || got != "chained 203.0.113.9, client 198.51.100.1, direct 127.0.0.2" {
				t.Errorf("the audit log has %q, %v", got, err)
			}
			_, err := clientAt(t, "127.0.0.1", nil).Get(names)
			if useTLS && err == nil {
				t.Error("a proxy's connection without a header is answered")
			}
			if !strings.Contains(log.String(), "http.proxy_protocol is set") {
				t.Errorf("the log doesn't say that a header is missing: %s", log.String())
			}
			if err := s.Stop(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestServeBehindLocalProxy: a proxy on the registry's machine lets others reach a registry on
// loopback. Without settings that say so, what the proxy passes on is refused, and the machine
// itself is served. With them, clients log in, until somebody says that they needn't.
func TestServeBehindLocalProxy(t *testing.T) {
	t.Parallel()
	common := []string{"PURSER_DATABASE_MAIN=" + dbtest.DSN(t), "PURSER_DATA_DIR=" + t.TempDir()}
	settings := []string{"PURSER_HTTP_EXTERNAL_URL=https://registry.example.com", "PURSER_HTTP_TRUSTED_PROXIES=127.0.0.1"}
	for _, step := range []struct {
		environ         []string
		direct, proxied int
		says            string // at the start
		answers         string // to a request that the proxy has passed on
	}{
		{nil, 202, 403, "Nobody logs in: 127.0.0.1:0 is on loopback", "http.trusted_proxies"},
		{settings, 401, 401, "Clients log in, since others reach the registry through a proxy, by http.external_url, http.trusted_proxies. Say auth.enabled: false", "UNAUTHORIZED"},
		{append(settings, "PURSER_AUTH_ENABLED=false"), 202, 202, "everybody who reaches https://registry.example.com may push", ""},
	} {
		var said strings.Builder
		cfg := servetest.Config(t, append(step.environ, common...)...)
		s := servetest.Start(t, func(ctx context.Context, out io.Writer) error {
			return serve.Run(ctx, cfg, io.MultiWriter(&said, out), slog.New(slog.DiscardHandler), nil)
		})
		target, err := url.Parse(s.Registry)
		if err != nil {
			t.Fatal(err)
		}
		proxy := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.SetXForwarded()
		}})
		const begin = "/v2/acme/app/blobs/uploads/"
		if status, text := askAs(t, "POST", s.Registry+begin, ""); status != step.direct {
			t.Errorf("%v: directly: %d %s, want %d", step.environ, status, text, step.direct)
		}
		if status, text := askAs(t, "POST", proxy.URL+begin, ""); status != step.proxied || !strings.Contains(text, step.answers) {
			t.Errorf("%v: through the proxy: %d %s, want %d", step.environ, status, text, step.proxied)
		}
		proxy.Close()
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
		if !strings.Contains(said.String(), step.says) {
			t.Errorf("%v: the start says\n%s\nwant %q", step.environ, said.String(), step.says)
		}
	}
}
