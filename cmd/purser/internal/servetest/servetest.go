// Package servetest starts servers in tests. It makes their configuration, and reads their
// log and the addresses that they announce.
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

// Config returns the configuration for a server on free ports, with a temporary data
// directory. The variables in `environ` override these settings.
func Config(t *testing.T, environ ...string) *config.Config {
	t.Helper()
	// The directory's path must be short, since the path of PostgreSQL's socket, which
	// begins with it, may have only about 100 bytes.
	dir, err := os.MkdirTemp("", "purser-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) }) //nolint:errcheck // a leftover temporary directory harms nobody
	// If a variable is given twice, the first value counts, so `environ` overrides the
	// values below.
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

// WaitFor polls `ok` until it returns true, for states that give no signal. After two
// minutes it fails the test.
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

// Log is a writer for a server's log that a test can read while the server writes.
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

// WriteCertificate writes to `files` a new certificate with the given serial number, and
// its key.
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

// records returns the lines of the log as JSON objects.
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

// Complaints returns the log messages that a server shouldn't write in normal operation:
// messages above level INFO, and errors and statements from PostgreSQL's log.
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
