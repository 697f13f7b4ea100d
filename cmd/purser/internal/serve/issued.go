package serve

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/purser-registry/purser/internal/acme"
	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/operatorfile"
	"github.com/purser-registry/purser/internal/worker"
)

// issued are certificates that the registry obtains by ACME. The listeners are opened before
// the database is, so the manager is missing until open is called. Until then TLS handshakes fail,
// and requests for challenges are refused.
type issued struct {
	roots      *x509.CertPool // for the authority's server; nil: the system's
	challenges net.Listener   // for http-01; nil: none
	handler    http.Handler   // for challenges; set before the manager is
	least      uint16         // the least version of TLS
	manager    atomic.Pointer[acme.Manager]
}

// errNoCertificates ends a TLS handshake.
var errNoCertificates = errors.New("the server is starting, and hasn't read its certificates from the database yet")

// newIssued reads the roots of the certificate authority, so that a file that is missing ends
// the start at once.
func newIssued(ctx context.Context, files config.TLS) (*issued, error) {
	roots, err := operatorfile.Roots(ctx, files.ACME.CAFile)
	if err != nil {
		return nil, fmt.Errorf("http.tls.acme.ca_file: %w", err)
	}
	return &issued{roots: roots, least: files.Least()}, nil
}

// open makes the manager.
func (c *issued) open(h config.HTTP, p dependencies) error {
	a := h.TLS.ACME
	names := make([]string, len(a.Hosts))
	for i, host := range a.Hosts {
		names[i] = strings.ToLower(host)
	}
	m, err := acme.New(acme.Options{
		DB: p.db, Hosts: names, DirectoryURL: a.DirectoryURL, Email: a.Email, AcceptTerms: a.AcceptTerms, Roots: c.roots,
		HTTP: c.challenges != nil, Replica: p.replica, Log: p.log, Metrics: p.metrics, Worker: p.loops,
	})
	if err != nil {
		return err
	}
	c.handler = m.Handler(h.ExternalURL)
	c.manager.Store(m)
	return nil
}

func (c *issued) config() *tls.Config {
	cfg := acme.TLSConfig(func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		m := c.manager.Load()
		if m == nil {
			return nil, errNoCertificates
		}
		return m.GetCertificate(hello)
	})
	cfg.MinVersion = c.least
	return cfg
}

// ServeHTTP implements http.Handler for the address of challenges.
func (c *issued) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if c.manager.Load() == nil {
		sayNotStarted(w, r)
		return
	}
	c.handler.ServeHTTP(w, r)
}

// reload makes the manager try at once to obtain a certificate that the authority has refused.
func (c *issued) reload(ctx context.Context) error {
	m := c.manager.Load()
	if m == nil {
		return nil // the server is still starting
	}
	return m.Retry(ctx)
}

// isChallenge tells the requests of a certificate authority.
func isChallenge(r *http.Request) bool {
	return strings.HasPrefix(r.URL.Path, "/.well-known/acme-challenge/")
}

// serveChallenges answers challenges at their address, if there is one, from the beginning of the
// start. The returned `stop` ends that.
func (s *sockets) serveChallenges(h config.HTTP, log *slog.Logger) (stop func()) {
	c, ok := s.cert.(*issued)
	if !ok || c.challenges == nil {
		return func() {}
	}
	return serveSmall(c.challenges, c, isChallenge, h, log)
}

// run returns a function that obtains and renews the certificates.
func (c *issued) run(*worker.Metrics) func(ctx context.Context) error {
	return func(ctx context.Context) error { return c.manager.Load().Run(ctx) }
}

func (c *issued) validUntil() time.Time {
	m := c.manager.Load()
	if m == nil {
		return time.Time{}
	}
	return m.ValidUntil()
}
