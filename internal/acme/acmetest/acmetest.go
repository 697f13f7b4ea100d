// Package acmetest runs a certificate authority for tests: Pebble, the ACME server that Let's
// Encrypt makes for tests of clients. It really connects to the host whose certificate is asked
// for, on ports that the test names.
package acmetest

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/testtool"
	"github.com/purser-registry/purser/internal/worker"
)

// Options configure an Authority.
type Options struct {
	// TLSPort and HTTPPort are the ports to which the authority connects for challenges of type
	// tls-alpn-01 and http-01, instead of 443 and 80.
	TLSPort, HTTPPort int
	// Validity is the lifetime of certificates, in whole seconds. Default 90 days.
	Validity time.Duration
}

// Authority is a certificate authority with an ACME server at DirectoryURL.
type Authority struct {
	DirectoryURL string
	CAFile       string         // PEM file with the certificate of the ACME server itself
	Roots        *x509.CertPool // has the certificate in CAFile
	config       string
	management   string // URL
	binary       string
	cmd          *exec.Cmd
	log          *log
}

// log is the output of the authority's process.
type log struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// New configures an authority, which Start starts. If Pebble isn't in the user's cache
// directory yet, New builds it, which takes a minute. If it can't be built, the test is skipped,
// or fails if the environment variable CI is set.
func New(t testing.TB, o Options) *Authority {
	t.Helper()
	binary, err := testtool.Path("pebble")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("no certificate authority to test with: %v", err)
		}
		t.Skipf("no certificate authority to test with: %v", err)
	}
	dir := t.TempDir()
	a := &Authority{CAFile: filepath.Join(dir, "ca.pem"), config: filepath.Join(dir, "pebble.json"), binary: binary, log: new(log)}
	key := filepath.Join(dir, "key.pem")
	a.Roots = writeCertificate(t, a.CAFile, key)
	directory, management := FreeAddr(t), FreeAddr(t)
	a.DirectoryURL, a.management = "https://"+directory+"/dir", "https://"+management
	seconds := int64(90 * 24 * time.Hour / time.Second)
	if o.Validity > 0 {
		seconds = int64(o.Validity / time.Second)
	}
	config, err := json.Marshal(map[string]any{"pebble": map[string]any{
		"listenAddress": directory, "managementListenAddress": management, "certificate": a.CAFile, "privateKey": key,
		"httpPort": o.HTTPPort, "tlsPort": o.TLSPort, "keyAlgorithm": "ecdsa", "retryAfter": map[string]int{"authz": 1, "order": 1},
		"profiles": map[string]any{"default": map[string]any{"description": "for tests", "validityPeriod": seconds}},
	}})
	must(t, err)
	must(t, os.WriteFile(a.config, config, 0o600))
	return a
}

// Start starts the authority and waits until it answers. The test's end stops it.
func (a *Authority) Start(t testing.TB) {
	t.Helper()
	a.cmd = exec.Command(a.binary, "-config", a.config)
	// Without these settings, Pebble waits for up to 15 seconds before it connects to a host, and
	// sometimes accepts a host without a new challenge.
	a.cmd.Env = append(os.Environ(), "PEBBLE_VA_NOSLEEP=1", "PEBBLE_AUTHZREUSE=0")
	a.cmd.Stdout, a.cmd.Stderr = a.log, a.log
	must(t, a.cmd.Start())
	t.Cleanup(func() {
		a.cmd.Process.Kill() //nolint:errcheck // it has ended
		a.cmd.Wait()         //nolint:errcheck // it was killed
		if t.Failed() {
			t.Logf("the authority's log:\n%s", a.log)
		}
	})
	for {
		if _, err := a.get(a.DirectoryURL); err == nil {
			return
		}
		if worker.Sleep(t.Context(), 20*time.Millisecond) != nil {
			t.Fatalf("the authority doesn't answer:\n%s", a.log)
		}
	}
}

// Issued returns how many certificates the authority has issued.
func (a *Authority) Issued() int { return strings.Count(a.log.String(), "Issued certificate serial") }

// Log returns the authority's log.
func (a *Authority) Log() string { return a.log.String() }

// Trust returns the roots of the certificates that the authority issues. The authority makes
// new ones each time it starts.
func (a *Authority) Trust(t testing.TB) *x509.CertPool {
	t.Helper()
	root, err := a.get(a.management + "/roots/0")
	must(t, err)
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(root) {
		t.Fatalf("the authority's root isn't PEM: %s", root)
	}
	return pool
}

func (a *Authority) get(url string) ([]byte, error) {
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: a.Roots}}
	defer transport.CloseIdleConnections()
	res, err := (&http.Client{Transport: transport, Timeout: time.Minute}).Get(url)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close() //nolint:errcheck // read to its end
	return io.ReadAll(res.Body)
}

// FreeAddr returns an address of loopback on which nobody listens.
func FreeAddr(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	must(t, l.Close())
	return l.Addr().String()
}

// writeCertificate writes a certificate for 127.0.0.1 that signs itself, and its key, and
// returns a pool with the certificate.
func writeCertificate(t testing.TB, certFile, keyFile string) *x509.CertPool {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	must(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	must(t, err)
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})
	must(t, os.WriteFile(certFile, text, 0o600))
	must(t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600))
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(text)
	return pool
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
