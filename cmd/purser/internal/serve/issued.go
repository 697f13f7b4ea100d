package serve

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
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
// the database is, so the manager is missing until open is called.
type issued struct {
	roots      *x509.CertPool // for the authority's server; nil: the system's
	challenges net.Listener   // for http-01; nil: none
	handler    http.Handler   // for challenges
	p          dependencies
	http       config.HTTP
	manager    atomic.Pointer[acme.Manager]
}

// newIssued reads the roots of the certificate authority, so that a file that is missing ends
// the start at once.
func newIssued(ctx context.Context, a config.ACME) (*issued, error) {
	roots, err := operatorfile.Roots(ctx, a.CAFile)
	if err != nil {
		return nil, fmt.Errorf("http.tls.acme.ca_file: %w", err)
	}
	return &issued{roots: roots}, nil
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
	c.p, c.http, c.handler = p, h, m.Handler(h.ExternalURL)
	c.manager.Store(m)
	return nil
}

func (c *issued) config() *tls.Config {
	cfg := c.manager.Load().TLSConfig()
	cfg.MinVersion = c.http.TLS.Least()
	return cfg
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

// run returns a function that obtains and renews the certificates, and answers challenges.
func (c *issued) run(*worker.Metrics) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		if c.challenges != nil {
			stop := serveSmall(c.challenges, c.handler, isChallenge, c.http, c.p.log)
			defer stop()
		}
		return c.manager.Load().Run(ctx)
	}
}

func (c *issued) validUntil() time.Time {
	m := c.manager.Load()
	if m == nil {
		return time.Time{}
	}
	return m.ValidUntil()
}
