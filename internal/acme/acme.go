// Package acme obtains the registry's TLS certificates from a certificate authority that speaks
// ACME (RFC 8555), such as Let's Encrypt, and renews them.
//
// All replicas of a registry share what they know in the table acmecertificates: the account's
// key, the certificates with their keys, the answers to the authority's challenges, and when
// the last attempts failed. Three rules make that safe:
//
//   - A replica issues a certificate only while it has the lease of the certificate's host, and
//     it reads the table again after it got the lease. An issuance ends before its lease does.
//     So a certificate is issued once and not once per replica.
//   - A challenge's answer is in the table before the authority is told that it is ready. The
//     authority may connect to any replica: each reads the answer from the table.
//   - Certificates are issued in the background, never within a handshake. A handshake gets the
//     newest certificate that this replica has read, so handshakes need neither the database
//     nor the authority, and clients can't cause an issuance.
//
// The authority may err. What it issues is used only if it is valid now, for the host and with
// its key; else the certificate in use stays. Its answers are bounded in size and time. After a
// failure, all replicas pause, for minutes at first and for up to a day later; a restart changes
// nothing about that, Retry does.
//
// # Decisions
//
// The package uses golang.org/x/crypto/acme and not its package autocert: autocert issues within
// handshakes, once per replica, and not for names without a dot, and it refuses clients that send
// no name.
//
// Nor does it use certmagic, which was tried against a scripted authority. certmagic shares
// account, certificates and locks through a storage that one writes, and has DNS-01 and ARI. But it
// stores and serves what the authority has issued without looking at it: a certificate that had
// expired, one for another name and one with another key each replaced a valid one. Its HTTP client
// can't be replaced and reads answers without a limit (1 GB, and 4 GB of memory, in 15 seconds).
// Its pauses are in memory, so a restart ends them; it ignores Retry-After of refusals; it has
// goroutines that never end. The binary grows by 2.7 MB. To have what Purser needs, its issuer and
// its stores of certificates would have to be written anew, and little of it would remain.
//
// A pause after a failure is in the database, by its clock, so that replicas and restarts keep it.
// Only an authority that can't be reached at all is tried again within a minute.
//
// The time at which a certificate is due is reckoned from when it was stored, if that is later than
// its own beginning. A machine whose clock runs ahead takes each certificate for old; so it still
// has two thirds of the rest.
package acme

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"golang.org/x/crypto/acme"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/worker"
)

const (
	// challengeTimeout limits the query for a challenge's answer, and that of Retry.
	challengeTimeout = 5 * time.Second
	// issueTimeout limits the issuance of a certificate. It is shorter than leaseTime, so that
	// two replicas never issue at the same time.
	issueTimeout = 3 * time.Minute
	// requestTimeout limits one request to the authority, with its answer.
	requestTimeout = time.Minute
	leaseTime      = 4 * time.Minute
	// leasedPause is how long a replica waits before it looks again for the certificate that
	// another replica is obtaining.
	leasedPause = time.Second
)

// Options configure a Manager.
type Options struct {
	DB *db.DB
	// Hosts are the names that get certificates, one certificate each, in lower case. Clients
	// that send no name get the certificate of the first host. Required.
	Hosts []string
	// DirectoryURL is the URL of the authority's directory. Default: Let's Encrypt.
	DirectoryURL string
	Email        string // contact of the account; "": none
	// AcceptTerms says that the operator accepts the authority's terms of service. Required.
	AcceptTerms bool
	// Roots are the certificates that the authority's own server may have. Default: the
	// system's.
	Roots *x509.CertPool
	// HTTP says that Handler is served on the hosts' port 80. Then http-01 challenges are tried
	// before those of type tls-alpn-01.
	HTTP    bool
	Replica uuid.UUID // names this process in leases
	Log     *slog.Logger
	Metrics prometheus.Registerer
	Worker  *worker.Metrics
}

// Manager keeps a valid certificate for each host. Its methods may be called concurrently.
type Manager struct {
	o        Options
	loop     *worker.Loop
	client   *http.Client // to the authority
	attempts *prometheus.CounterVec
	nameless sync.Once // the log says once that a client sent no name

	certs atomic.Pointer[map[string]*certificate] // by host

	retry atomic.Bool // Retry was called: the next batch tries whatever has failed

	// Only the loop uses these.
	pause    time.Duration               // until the next batch
	unstored map[string]*tls.Certificate // by host: issued, but the database didn't take them
	quiet    map[string]time.Time        // by host: until when to pause, if the database didn't take the failure
	ignored  map[string]string           // by host: content of a row that isn't used, so that the log says it once

	issueTimeout time.Duration
}

// certificate is a certificate in use, with the row's content from which it was read.
type certificate struct {
	pair    *tls.Certificate
	content string
	since   time.Time // when it was stored, by this machine's clock
	lost    bool      // the database doesn't have it any more, so another one is due
}

// New makes a Manager. Run obtains the certificates.
func New(o Options) (*Manager, error) {
	switch {
	case o.DB == nil:
		return nil, errors.New("acme: there is no database")
	case len(o.Hosts) == 0:
		return nil, errors.New("acme: there is no host")
	case !o.AcceptTerms:
		return nil, errors.New("acme: the terms of the certificate authority aren't accepted")
	}
	o.DirectoryURL = cmp.Or(o.DirectoryURL, acme.LetsEncryptURL)
	o.Log = cmp.Or(o.Log, slog.Default())
	m := &Manager{o: o, issueTimeout: issueTimeout, client: &http.Client{Timeout: requestTimeout, Transport: &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		TLSClientConfig:     &tls.Config{RootCAs: o.Roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout: 10 * time.Second, IdleConnTimeout: 30 * time.Second, ForceAttemptHTTP2: true,
		MaxResponseHeaderBytes: maxAnswerHeader,
	}}, unstored: map[string]*tls.Certificate{}, quiet: map[string]time.Time{}, ignored: map[string]string{}}
	m.certs.Store(&map[string]*certificate{})
	m.attempts = promauto.With(o.Metrics).NewCounterVec(prometheus.CounterOpts{
		Name: "purser_acme_attempts_total", Help: "Attempts of this process to obtain a certificate by ACME.",
	}, []string{"result"})
	for _, result := range []string{"issued", "failed"} {
		m.attempts.WithLabelValues(result)
	}
	m.loop = m.newLoop(time.Second)
	return m, nil
}

// newLoop makes the loop, which sleeps for `least` after its first failure.
func (m *Manager) newLoop(least time.Duration) *worker.Loop {
	return worker.New(worker.Options{
		Name: "acme", Batch: m.batch, Next: func(context.Context) (time.Duration, error) { return m.pause, nil },
		Timeout:    time.Duration(len(m.o.Hosts)) * (issueTimeout + time.Minute),
		BackoffMin: least, WakeFailed: true, Log: m.o.Log, Metrics: m.o.Worker,
	})
}

// Run obtains and renews certificates until ctx ends. Then it returns nil.
func (m *Manager) Run(ctx context.Context) error {
	defer m.client.CloseIdleConnections()
	return m.loop.Run(ctx)
}

// Retry forgets the failures of earlier attempts, so that the next attempt is made now. If one is
// under way and fails, another one follows it at once.
func (m *Manager) Retry(ctx context.Context) error {
	m.retry.Store(true)
	defer m.loop.Wake()
	ctx, cancel := context.WithTimeout(ctx, challengeTimeout)
	defer cancel()
	return m.forgetFailures(ctx)
}

// TLSConfig returns a configuration that presents, on each new connection, the certificate that `get`
// returns, mostly [Manager.GetCertificate], and that lets authorities ask for tls-alpn-01 challenges.
func TLSConfig(get func(*tls.ClientHelloInfo) (*tls.Certificate, error)) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: get, NextProtos: []string{"h2", "http/1.1", acme.ALPNProto}}
}

// GetCertificate returns the certificate for the host that the client names, or for the first
// host if the client names none. It returns an error if the name isn't one of the hosts, or
// has no certificate yet. For the authority's check of type tls-alpn-01 (RFC 8737) it returns
// the certificate that answers the challenge.
func (m *Manager) GetCertificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	name := strings.TrimSuffix(strings.ToLower(hello.ServerName), ".")
	if len(hello.SupportedProtos) == 1 && hello.SupportedProtos[0] == acme.ALPNProto {
		if !m.isHost(name) {
			return nil, fmt.Errorf("acme: a challenge for the name %.100q, which isn't in http.tls.acme.hosts", name)
		}
		ctx, cancel := context.WithTimeout(hello.Context(), challengeTimeout)
		defer cancel()
		return m.challengeCertificate(ctx, name)
	}
	if name == "" {
		m.nameless.Do(func() {
			m.o.Log.Info("a client's TLS handshake names no host (SNI); such clients get the certificate of the first host in http.tls.acme.hosts",
				"host", m.o.Hosts[0], "remote", remote(hello))
		})
		name = m.o.Hosts[0]
	}
	if !m.isHost(name) {
		return nil, fmt.Errorf("acme: the client asks for the name %.100q, which isn't in http.tls.acme.hosts", name)
	}
	c := (*m.certs.Load())[name]
	if c == nil {
		return nil, fmt.Errorf("acme: there is no certificate for %s yet", name)
	}
	return c.pair, nil
}

func remote(hello *tls.ClientHelloInfo) string {
	if hello.Conn == nil {
		return ""
	}
	return hello.Conn.RemoteAddr().String()
}

func (m *Manager) isHost(name string) bool {
	for _, host := range m.o.Hosts {
		if host == name {
			return true
		}
	}
	return false
}

// ValidUntil returns when the first of the certificates expires. It returns the zero time if a
// host has no certificate.
func (m *Manager) ValidUntil() time.Time {
	var first time.Time
	certs := *m.certs.Load()
	for _, host := range m.o.Hosts {
		c := certs[host]
		if c == nil {
			return time.Time{}
		}
		if end := c.pair.Leaf.NotAfter; first.IsZero() || end.Before(first) {
			first = end
		}
	}
	return first
}
