package serve

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/worker"
)

// certificateEvery is how often the files of the TLS certificate are checked for changes.
const certificateEvery = 10 * time.Second

// certificates are the registry's TLS certificates, which come from files (certificate) or are
// obtained by ACME (issued). Their methods may be called concurrently.
type certificates interface {
	// config returns a TLS configuration that presents, on each new connection, the
	// certificate that is in use at that time.
	config() *tls.Config
	// reload reads the certificate again, or obtains it, at once.
	reload(ctx context.Context) error
	// run returns a function that keeps the certificates up to date until its context ends.
	run(loops *worker.Metrics) func(ctx context.Context) error
	// validUntil returns when the first of the certificates expires, the zero time if one is
	// missing.
	validUntil() time.Time
}

// openCertificates prepares the certificates, for which ACME needs the database. It returns the
// background function that keeps them up to date; there is none without TLS.
func (s *sockets) openCertificates(cfg *config.Config, p dependencies) ([]func(context.Context) error, error) {
	if s.cert == nil {
		return nil, nil
	}
	if c, ok := s.cert.(*issued); ok {
		if err := c.open(cfg.HTTP, p); err != nil {
			return nil, err
		}
	}
	err := p.metrics.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "purser_tls_certificate_expiry_timestamp_seconds",
		Help: "When the certificate in use ends, in seconds since 1970. Of several certificates, the one that ends first counts. 0 if there is none yet.",
	}, func() float64 {
		end := s.cert.validUntil()
		if end.IsZero() {
			return 0
		}
		return float64(end.Unix())
	}))
	return []func(context.Context) error{s.cert.run(p.loops)}, err
}

// certificate is the registry's TLS certificate. The registry reads the certificate's files
// again when they change. If the new certificate can't be read, or doesn't match its key,
// the old certificate stays in use.
type certificate struct {
	files config.TLS
	log   *slog.Logger
	used  atomic.Pointer[tls.Certificate]

	mu   sync.Mutex
	seen [sha256.Size]byte // hash of the files when they were last read
}

func loadCertificate(files config.TLS, log *slog.Logger) (*certificate, error) {
	c := &certificate{files: files, log: log}
	if err := c.reload(context.Background()); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *certificate) config() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.used.Load(), nil },
	}
}

// reload reads the files, and uses their certificate from now on if the files have changed.
// It returns an error if they can't be read or don't hold a valid certificate and its key.
func (c *certificate) reload(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	cert, err := os.ReadFile(c.files.Cert)
	if err != nil {
		return fmt.Errorf("reading the certificate (http.tls.cert): %w", err)
	}
	key, err := os.ReadFile(c.files.Key)
	if err != nil {
		return fmt.Errorf("reading the certificate's key (http.tls.key): %w", err)
	}
	seen := sha256.Sum256(bytes.Join([][]byte{cert, key}, []byte{0}))
	if seen == c.seen {
		return nil
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return fmt.Errorf("reading the certificate %s with the key %s (http.tls.cert, http.tls.key): %w", c.files.Cert, c.files.Key, err)
	}
	c.seen = seen
	if c.used.Swap(&pair) != nil {
		c.log.InfoContext(ctx, "the certificate was changed", "file", c.files.Cert, "valid_until", pair.Leaf.NotAfter)
	}
	return nil
}

// run returns a function that calls reload every certificateEvery until ctx ends.
func (c *certificate) run(loops *worker.Metrics) func(ctx context.Context) error {
	return worker.New(worker.Options{
		Name: "certificate", Idle: certificateEvery, BackoffMin: certificateEvery, Log: c.log, Metrics: loops,
		Batch: func(ctx context.Context) (more bool, err error) {
			if err := c.reload(ctx); err != nil {
				return false, fmt.Errorf("%w; the certificate that was read before stays in use, and expires at %s",
					err, c.used.Load().Leaf.NotAfter.Format(time.RFC3339))
			}
			return false, nil
		},
	}).Run
}

func (c *certificate) validUntil() time.Time { return c.used.Load().Leaf.NotAfter }
