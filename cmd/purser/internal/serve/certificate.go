package serve

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/operatorfile"
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
// again when they change. If the new certificate can't be read, doesn't match its key, or isn't
// valid now although the old one is, then the old certificate stays in use.
type certificate struct {
	files config.TLS
	log   *slog.Logger
	used  atomic.Pointer[tls.Certificate]
	reads atomic.Int64 // how many reads of the files have begun

	mu     sync.Mutex        // isn't held while files are read, since that may take long
	newest int64             // the number of the last read whose result was looked at
	seen   [sha256.Size]byte // hash of the files of the certificate in use
	open   bool              // the log says that everybody can read the key
}

func loadCertificate(ctx context.Context, files config.TLS, log *slog.Logger) (*certificate, error) {
	c := &certificate{files: files, log: log}
	if err := c.reload(ctx); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *certificate) config() *tls.Config {
	return &tls.Config{
		MinVersion:     c.files.Least(),
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.used.Load(), nil },
	}
}

// reload reads the files, and uses their certificate from now on if the files have changed.
// It returns an error if they can't be read, or if their certificate isn't used.
func (c *certificate) reload(ctx context.Context) error {
	n := c.reads.Add(1)
	cert, err := operatorfile.Read(ctx, c.files.Cert, operatorfile.MaxPEM)
	if err != nil {
		return fmt.Errorf("reading the certificate (http.tls.cert): %w", err)
	}
	key, err := operatorfile.Read(ctx, c.files.Key, operatorfile.MaxPEM)
	if err != nil {
		return fmt.Errorf("reading the certificate's key (http.tls.key): %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if n < c.newest {
		return nil // a read that began later has ended before
	}
	c.newest = n
	c.warnOfOpenKey(ctx, key)
	seen := sha256.Sum256(bytes.Join([][]byte{cert.Text, key.Text}, []byte{0}))
	if seen == c.seen {
		return nil
	}
	pair, err := tls.X509KeyPair(cert.Text, key.Text)
	if err != nil {
		return fmt.Errorf("reading the certificate %s with the key %s (http.tls.cert, http.tls.key): %w", c.files.Cert, c.files.Key, err)
	}
	if err := c.use(ctx, &pair); err != nil {
		return err
	}
	c.seen = seen
	return nil
}

// use takes a new certificate into use. One that isn't valid now doesn't replace one that is.
func (c *certificate) use(ctx context.Context, pair *tls.Certificate) error {
	now, old := time.Now(), c.used.Load()
	invalid := whyInvalid(pair.Leaf, now)
	if invalid != "" && old != nil && whyInvalid(old.Leaf, now) == "" {
		return fmt.Errorf("the certificate in %s (http.tls.cert) %s: it is valid from %s until %s", c.files.Cert, invalid,
			pair.Leaf.NotBefore.UTC().Format(time.RFC3339), pair.Leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	c.used.Store(pair)
	dates := []any{"file", c.files.Cert, "valid_from", pair.Leaf.NotBefore, "valid_until", pair.Leaf.NotAfter}
	switch {
	case invalid != "":
		c.log.WarnContext(ctx, "the certificate "+invalid+", and is served nevertheless, since there is no better one; clients refuse it", dates...)
	case old != nil:
		c.log.InfoContext(ctx, "the certificate was changed", dates...)
	}
	return nil
}

// whyInvalid says why a certificate isn't valid at a time, "" if it is.
func whyInvalid(leaf *x509.Certificate, now time.Time) string {
	switch {
	case now.After(leaf.NotAfter):
		return "has expired"
	case now.Before(leaf.NotBefore):
		return "isn't valid yet"
	}
	return ""
}

// warnOfOpenKey says in the log that everybody can read the key, once until that changes.
func (c *certificate) warnOfOpenKey(ctx context.Context, key *operatorfile.File) {
	if key.ForAll() && !c.open {
		c.log.WarnContext(ctx, "each user of this machine can read the certificate's key, and so pose as the registry; run: chmod o-r "+c.files.Key,
			"file", c.files.Key, "mode", fmt.Sprintf("%04o", key.Mode.Perm()))
	}
	c.open = key.ForAll()
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
