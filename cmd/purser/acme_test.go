package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/purser-registry/purser/cmd/purser/internal/serve"
	"github.com/purser-registry/purser/cmd/purser/internal/servetest"
	"github.com/purser-registry/purser/internal/acme/acmetest"
	"github.com/purser-registry/purser/internal/db/dbtest"
)

// portOf returns the port of an address.
func portOf(t *testing.T, addr string) int {
	t.Helper()
	a, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	return a.Port
}

// overTLS returns a client that connects to addr, whatever the host of the URL is, and trusts
// only the given roots.
func overTLS(t *testing.T, addr string, roots *x509.CertPool) *http.Client {
	t.Helper()
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: true, ForceAttemptHTTP2: true,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, addr)
		},
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// TestServeACME: the certificate authority is down when the first server starts. The server
// starts nevertheless, and gets its certificate when the authority is there. A second server on
// the same database, and the first one after a restart, serve the same certificate. The metric
// says when it expires, and the address for http-01 redirects.
func TestServeACME(t *testing.T) {
	t.Parallel()
	dsn, blobs := dbtest.DSN(t), t.TempDir()
	addr, plain := acmetest.FreeAddr(t), acmetest.FreeAddr(t)
	a := acmetest.New(t, acmetest.Options{TLSPort: portOf(t, addr), HTTPPort: portOf(t, plain)})
	text := new(servetest.Log)
	begin := func(environ ...string) *servetest.Server {
		cfg := servetest.Config(t, append(environ, "PURSER_DATABASE_MAIN="+dsn, "PURSER_STORAGE_FILESYSTEM_PATH="+blobs,
			"PURSER_AUTH_ENABLED=false", "PURSER_HTTP_TLS_ACME_HOSTS=LocalHost", "PURSER_HTTP_TLS_ACME_ACCEPT_TERMS=true", "PURSER_HTTP_TLS_ACME_EMAIL=registry@example.com",
			"PURSER_HTTP_TLS_ACME_DIRECTORY_URL="+a.DirectoryURL, "PURSER_HTTP_TLS_ACME_CA_FILE="+a.CAFile)...)
		return servetest.Start(t, func(ctx context.Context, out io.Writer) error {
			return serve.Run(ctx, cfg, out, slog.New(slog.NewTextHandler(text, nil)), nil)
		})
	}
	own := []string{"PURSER_HTTP_ADDR=" + addr, "PURSER_HTTP_TLS_ACME_HTTP_ADDR=" + plain}
	first := begin(own...)
	if first.Registry != "https://"+addr {
		t.Errorf("the registry is at %s", first.Registry)
	}
	if _, err := overTLS(t, addr, nil).Get("https://localhost/v2/"); err == nil {
		t.Error("TLS works without a certificate")
	}
	if _, metrics := get(t, first.Debug+"/metrics"); !strings.Contains(metrics, "purser_tls_certificate_expiry_timestamp_seconds 0\n") {
		t.Error("the metric doesn't say that there is no certificate")
	}
	a.Start(t)
	roots := a.Trust(t)
	serial := func(addr string) (string, error) {
		res, err := overTLS(t, addr, roots).Get("https://localhost/v2/")
		if err != nil {
			return "", err
		}
		defer res.Body.Close() //nolint:errcheck // of no interest
		if res.StatusCode != 200 || res.ProtoMajor != 2 {
			t.Errorf("%s %s", res.Proto, res.Status)
		}
		return res.TLS.PeerCertificates[0].SerialNumber.String(), nil
	}
	var want string
	servetest.WaitFor(t, "the first server has a certificate", func() (ok bool) {
		got, err := serial(addr)
		want = got
		return err == nil
	})
	second := begin()
	servetest.WaitFor(t, "the second server has the certificate", func() bool {
		got, err := serial(strings.TrimPrefix(second.Registry, "https://"))
		return err == nil && got == want
	})
	checkPlain(t, plain)
	if err := first.Stop(); err != nil {
		t.Error(err)
	}
	again := begin(own...)
	servetest.WaitFor(t, "the certificate after a restart", func() bool {
		got, err := serial(addr)
		return err == nil && got == want
	})
	if n := a.Issued(); n != 1 {
		t.Errorf("%d certificates were issued, want 1", n)
	}
	res, err := overTLS(t, addr, roots).Get("https://localhost/v2/")
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close() //nolint:errcheck // of no interest
	_, metrics := get(t, again.Debug+"/metrics")
	line := fmt.Sprintf("purser_tls_certificate_expiry_timestamp_seconds %v\n", float64(res.TLS.PeerCertificates[0].NotAfter.Unix()))
	if !strings.Contains(metrics, line) || !strings.Contains(metrics, `purser_acme_attempts_total{result="issued"} 0`) {
		t.Errorf("the metrics lack %q", line)
	}
	for _, s := range []*servetest.Server{second, again} {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	}
	// On a busy machine a worker may wait for a lock too long; it tries again.
	expected := text.Count("obtaining the certificate of localhost") + text.Count("due to lock timeout")
	if strings.Contains(text.String(), "PRIVATE KEY") || text.Count("has issued a certificate") != 1 || text.Count("level=ERROR") > expected {
		t.Errorf("the log is\n%s", text)
	}
}

// checkPlain asks the address for http-01 challenges as a browser does.
func checkPlain(t *testing.T, addr string) {
	t.Helper()
	for path, want := range map[string]string{"/v2/": "302 https://localhost/v2/", "/.well-known/acme-challenge/x": "404 "} {
		res, err := overTLS(t, addr, nil).Get("http://localhost" + path)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close() //nolint:errcheck // of no interest
		if got := fmt.Sprintf("%d %s", res.StatusCode, res.Header.Get("Location")); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}

// TestACMEAtStart: mistakes that can be seen at once end the start, with the setting's name.
func TestACMEAtStart(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close() //nolint:errcheck // nobody connects
	for env, want := range map[string]string{
		"PURSER_HTTP_TLS_ACME_CA_FILE=/nonexistent.pem":               "http.tls.acme.ca_file",
		"PURSER_HTTP_TLS_ACME_CA_FILE=" + writeFile(t, "x"):           "no certificate in PEM format",
		"PURSER_HTTP_TLS_ACME_HTTP_ADDR=" + taken.Addr().String():     "is in use by another process",
		"PURSER_HTTP_TLS_ACME_DIRECTORY_URL=https://u:p@ca.example/d": "http.tls.acme.directory_url",
		"PURSER_HTTP_TLS_CERT=/c.pem":                                 "set either the files or ACME",
		"PURSER_HTTP_TLS_ACME_ACCEPT_TERMS=false":                     "accept its terms of service",
	} {
		environ := []string{env, "PURSER_HTTP_ADDR=127.0.0.1:0", "PURSER_HTTP_DEBUG_ADDR=127.0.0.1:0", "PURSER_DATA_DIR=" + t.TempDir(),
			"PURSER_HTTP_TLS_ACME_HOSTS=r.example", "PURSER_HTTP_TLS_ACME_ACCEPT_TERMS=true"}
		if strings.Contains(env, "ACCEPT_TERMS") {
			environ = environ[:5]
		}
		if code, _, stderr := purser(t, environ, "serve"); code == 0 || !strings.Contains(stderr, want) || strings.Contains(stderr, ":p@") {
			t.Errorf("%s: %d %s, want %q", env, code, stderr, want)
		}
	}
}
