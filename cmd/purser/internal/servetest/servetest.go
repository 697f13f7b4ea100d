// Package servetest starts servers in tests: their configuration, their announcement and
// their log.
package servetest

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/worker"
)

// Config returns the configuration for a server on free ports.
func Config(t *testing.T, environ ...string) *config.Config {
	t.Helper()
	// The path must be short, since PostgreSQL's socket is below it.
	dir, err := os.MkdirTemp("", "purser-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) }) //nolint:errcheck // a leftover temporary directory harms nobody
	// If a variable is given twice, the first counts.
	cfg, err := config.Load("", append(slices.Clone(environ),
		"PURSER_DATA_DIR="+dir, "PURSER_HTTP_ADDR=127.0.0.1:0", "PURSER_HTTP_DEBUG_ADDR=127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// Server is a server in this process.
type Server struct {
	Registry, Debug, Profiles, Data string // as it told
	Stop                            func() error
}

func Start(t *testing.T, serve func(ctx context.Context, out io.Writer) error) *Server {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := serve(ctx, w)
		w.CloseWithError(fmt.Errorf("run returned: %w", err))
		done <- err
	}()
	stop := func() error {
		cancel()
		err := <-done
		done <- err
		return err
	}
	t.Cleanup(func() { stop() }) //nolint:errcheck // the test looks at it where it matters
	s := &Server{Stop: stop}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		key, value, _ := strings.Cut(strings.TrimSpace(lines.Text()), " ")
		value = strings.TrimSpace(value)
		switch key {
		case "registry":
			s.Registry = value
		case "debug":
			s.Debug = value
		case "profiles":
			s.Profiles = value
		case "data":
			s.Data = value
		case "push":
			return s
		}
	}
	t.Fatalf("the server isn't ready: %v", lines.Err())
	return nil
}

// WaitFor polls until ok returns true, for states that give no signal.
func WaitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for !ok() {
		if worker.Sleep(ctx, 20*time.Millisecond) != nil {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// Log is a log that a test reads while it is written.
type Log struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *Log) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *Log) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func (b *Log) Count(text string) int { return strings.Count(b.String(), text) }

// WriteCertificate writes a certificate with a serial number, and its key.
func WriteCertificate(t *testing.T, files config.TLS, serial int64) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "localhost"}, DNSNames: []string{"localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Duration(serial) * time.Hour),
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for path, block := range map[string]*pem.Block{files.Cert: {Type: "CERTIFICATE", Bytes: cert}, files.Key: {Type: "PRIVATE KEY", Bytes: der}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// records returns the log of a server as JSON objects.
func (b *Log) records(t *testing.T) []map[string]any {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	var list []map[string]any
	for line := range strings.Lines(b.buf.String()) {
		var r map[string]any
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("a line of the log isn't JSON: %q", line)
		}
		list = append(list, r)
	}
	return list
}

// Complaints returns log lines that a server shouldn't write on an ordinary day: those
// above INFO, and PostgreSQL's errors and statements.
func (b *Log) Complaints(t *testing.T) []string {
	t.Helper()
	var list []string
	for _, r := range b.records(t) {
		severity, _ := r["severity"].(string)
		if l := r["level"]; l == "WARN" || l == "ERROR" || !slices.Contains([]string{"", "LOG", "INFO", "NOTICE", "DEBUG"}, severity) {
			list = append(list, fmt.Sprint(r))
		}
	}
	return list
}
