package serve

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/cmd/purser/internal/servetest"
	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/db/dbtest"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// writePair writes a certificate that is valid for the given time around now, and its key.
func writePair(t *testing.T, files config.TLS, serial int64, begin, end time.Duration) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), DNSNames: []string{"localhost"}, NotBefore: time.Now().Add(begin), NotAfter: time.Now().Add(end)}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	must(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	must(t, err)
	must(t, os.WriteFile(files.Cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), 0o600))
	must(t, os.WriteFile(files.Key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600))
}

// pairFiles returns the paths of a certificate and a key that a test writes, and a log.
func pairFiles(t *testing.T) (config.TLS, *servetest.Log, *slog.Logger) {
	t.Helper()
	dir, out := t.TempDir(), new(servetest.Log)
	return config.TLS{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}, out, slog.New(slog.NewTextHandler(out, nil))
}

func (c *certificate) serial() int64 { return c.used.Load().Leaf.SerialNumber.Int64() }

// TestInvalidCertificate: a certificate that has expired or isn't valid yet doesn't replace one
// that is valid. Without a better one it is served, with a warning, and replaced by a better one.
func TestInvalidCertificate(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, want string
		begin, end time.Duration
	}{
		{"expired", "has expired", -100 * time.Hour, -time.Hour},
		{"future", "isn't valid yet", time.Hour, 100 * time.Hour},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			files, out, log := pairFiles(t)
			writePair(t, files, 1, -time.Hour, time.Hour)
			c, err := loadCertificate(t.Context(), files, log)
			must(t, err)
			writePair(t, files, 2, tt.begin, tt.end)
			date := time.Now().Add(tt.end).UTC().Format("2006-01-02T15")
			for range 2 {
				err = c.reload(t.Context())
				if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), files.Cert) || !strings.Contains(err.Error(), date) {
					t.Errorf("the error is %v", err)
				}
			}
			if n := c.serial(); n != 1 {
				t.Errorf("certificate %d replaces a valid one", n)
			}
			// A server that starts now has no better one.
			c, err = loadCertificate(t.Context(), files, log)
			if err != nil || c.serial() != 2 {
				t.Fatalf("at the start: %v", err)
			}
			must(t, c.reload(t.Context()))
			if text := out.String(); strings.Count(text, "level=WARN") != 1 || !strings.Contains(text, tt.want) || !strings.Contains(text, files.Cert) || !strings.Contains(text, "valid_until="+date[:13]) {
				t.Errorf("the log is %s", text)
			}
			writePair(t, files, 3, -time.Hour, time.Hour)
			if err := c.reload(t.Context()); err != nil || c.serial() != 3 {
				t.Errorf("a better one: %v, and %d is served", err, c.serial())
			}
		})
	}
}

// TestFilesThatAreNone: a pipe, a directory or a huge file in place of the certificate or the key
// is refused at once, and the old certificate stays.
func TestFilesThatAreNone(t *testing.T) {
	t.Parallel()
	for name, place := range map[string]func(path string) error{
		"a pipe":          func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"a directory":     func(path string) error { return os.Mkdir(path, 0o700) },
		"more than 1 MiB": func(path string) error { return os.WriteFile(path, make([]byte, 1<<20+1), 0o600) },
	} {
		for _, key := range []bool{false, true} {
			files, _, log := pairFiles(t)
			writePair(t, files, 1, -time.Hour, time.Hour)
			c, err := loadCertificate(t.Context(), files, log)
			must(t, err)
			path := files.Cert
			if key {
				path = files.Key
			}
			must(t, os.Remove(path))
			must(t, place(path))
			if err := c.reload(t.Context()); err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), path) {
				t.Errorf("%s: %v", name, err)
			}
			if _, err := loadCertificate(t.Context(), files, log); err == nil {
				t.Errorf("%s: a server starts with it", name)
			}
			must(t, os.Remove(path))
			writePair(t, files, 2, -time.Hour, time.Hour)
			if err := c.reload(t.Context()); err != nil || c.serial() != 2 {
				t.Errorf("%s: after the repair: %v, and %d is served", name, err, c.serial())
			}
		}
	}
}

// TestOpenKey: the log says once that everybody can read the key, and again if that was mended
// meanwhile.
func TestOpenKey(t *testing.T) {
	t.Parallel()
	files, out, log := pairFiles(t)
	writePair(t, files, 1, -time.Hour, time.Hour)
	c, err := loadCertificate(t.Context(), files, log)
	must(t, err)
	for i, tt := range []struct {
		mode os.FileMode
		want int
	}{{0o600, 0}, {0o640, 0}, {0o644, 1}, {0o644, 1}, {0o400, 1}, {0o604, 2}} {
		must(t, os.Chmod(files.Key, tt.mode))
		must(t, c.reload(t.Context()))
		if n := strings.Count(out.String(), "each user of this machine can read"); n != tt.want {
			t.Errorf("step %d: %d warnings, want %d", i, n, tt.want)
		}
	}
	if text := out.String(); !strings.Contains(text, "level=WARN") || !strings.Contains(text, files.Key) {
		t.Errorf("the log is %s", text)
	}
}

// TestPipeAsCertificate: a pipe replaces the certificate of a running server, as does one of its
// secrets' files. SIGHUP says so, a repair is found, and the server stops.
func TestPipeAsCertificate(t *testing.T) {
	dir := t.TempDir()
	files := config.TLS{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
	writePair(t, files, 1, -time.Hour, time.Hour)
	cfg := servetest.Config(t, "PURSER_DATABASE_MAIN="+dbtest.DSN(t), "PURSER_HTTP_TLS_CERT="+files.Cert, "PURSER_HTTP_TLS_KEY="+files.Key, "PURSER_DATA_DIR="+dir)
	out := new(servetest.Log)
	log, level, err := command.NewLeveledLogger(out, config.Log{Level: "info", Format: "json"})
	must(t, err)
	hang, hangs := make(chan struct{}), make(chan struct{})
	loads := 0
	reload := &reloader{running: cfg, level: level, log: log, load: func() (*config.Config, error) {
		if loads++; loads == 3 { // the configuration's file system hangs
			close(hangs)
			<-hang
		}
		return cfg, nil
	}}
	defer close(hang)
	s := servetest.Start(t, func(ctx context.Context, out io.Writer) error { return Run(ctx, cfg, out, log, reload) })
	hangup := func(want string) {
		t.Helper()
		// A signal that is sent before a reload has ended may be one with the next.
		const ended = "SIGHUP: reloaded"
		before, reloads := out.Count(want), out.Count(ended)
		must(t, syscall.Kill(os.Getpid(), syscall.SIGHUP))
		servetest.WaitFor(t, "the log to say "+want, func() bool { return out.Count(want) > before && out.Count(ended) > reloads })
	}
	must(t, os.Remove(files.Cert))
	must(t, syscall.Mkfifo(files.Cert, 0o600))
	hangup("it is a pipe, not a regular file")
	must(t, os.Remove(files.Cert))
	writePair(t, files, 2, -time.Hour, time.Hour)
	hangup("SIGHUP: reloaded")
	conn, err := tls.Dial("tcp", strings.TrimPrefix(s.Registry, "https://"), &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // of this test
	must(t, err)
	if n := conn.ConnectionState().PeerCertificates[0].SerialNumber.Int64(); n != 2 {
		t.Errorf("certificate %d is served after the repair", n)
	}
	conn.Close() //nolint:errcheck
	must(t, syscall.Kill(os.Getpid(), syscall.SIGHUP))
	<-hangs
	if err := s.Stop(); err != nil {
		t.Errorf("stopped with %v", err)
	}
}

// TestLeastVersion: clients that don't speak the least version of TLS are refused, and others aren't.
func TestLeastVersion(t *testing.T) {
	t.Parallel()
	for least, want := range map[string]map[uint16]bool{
		"1.2": {tls.VersionTLS11: false, tls.VersionTLS12: true, tls.VersionTLS13: true},
		"1.3": {tls.VersionTLS12: false, tls.VersionTLS13: true},
	} {
		files, _, log := pairFiles(t)
		files.MinVersion = least
		writePair(t, files, 1, -time.Hour, time.Hour)
		cert, err := loadCertificate(t.Context(), files, log)
		must(t, err)
		l, err := tls.Listen("tcp", "127.0.0.1:0", cert.config())
		must(t, err)
		t.Cleanup(func() { l.Close() }) //nolint:errcheck // nobody needs it any more
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				conn.(*tls.Conn).Handshake() //nolint:errcheck // the client sees it
				conn.Close()                 //nolint:errcheck // likewise
			}
		}()
		for version, ok := range want {
			conn, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{MinVersion: version, MaxVersion: version, InsecureSkipVerify: true}) //nolint:gosec // old versions are the matter
			if (err == nil) != ok {
				t.Errorf("at least %s: a client with %s: %v", least, tls.VersionName(version), err)
			}
			if err == nil {
				conn.Close() //nolint:errcheck // it was of no use
			}
		}
	}
}
