package acme

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"time"

	"golang.org/x/crypto/acme"

	"github.com/purser-registry/purser/internal/worker"
)

const (
	tlsALPN = "tls-alpn-01"
	http01  = "http-01"
	// maxRetries is how often a request to the authority is repeated after an answer 5xx, or
	// after one that says that its nonce was used before.
	maxRetries = 5
)

var errNoChallenge = errors.New("the authority offers no challenge that can be answered")

var (
	// errClock says that a certificate isn't valid by this machine's clock.
	errClock = errors.New("if its dates are right, this machine's clock is wrong")
	// errUnusable says that the authority has issued something else than was asked for.
	errUnusable = errors.New("the authority's certificate can't be used")
)

const (
	// maxAhead is by how much this machine's clock may differ from the authority's, if a
	// certificate's dates didn't fit before.
	maxAhead = 24 * time.Hour
	// maxEarly is how long to wait for a certificate that becomes valid soon: the clocks differ
	// a little.
	maxEarly = time.Minute
	maxToken = 256 // bytes of a challenge's token
)

// issue obtains a certificate for the host from the authority `a`. `clock` says that the dates of
// the last certificate didn't fit this machine's clock: then it isn't asked for another one as
// long as the clocks differ, since authorities issue few certificates per week.
func (m *Manager) issue(ctx context.Context, host string, a *authority, clock bool) (*tls.Certificate, error) {
	account, err := m.accountKey(ctx)
	if err != nil {
		return nil, err
	}
	client := &acme.Client{
		Key: account, HTTPClient: &http.Client{Timeout: m.client.Timeout, Transport: a}, DirectoryURL: m.o.DirectoryURL, UserAgent: "purser",
		RetryBackoff: func(n int, _ *http.Request, res *http.Response) time.Duration {
			if n > maxRetries || res != nil && res.StatusCode == http.StatusTooManyRequests {
				return -1
			}
			return time.Duration(n) * 200 * time.Millisecond
		},
	}
	contact := &acme.Account{}
	if m.o.Email != "" {
		contact.Contact = []string{"mailto:" + m.o.Email}
	}
	// This is done each time, since an authority may have lost its accounts.
	_, err = client.Register(ctx, contact, func(string) bool { return m.o.AcceptTerms })
	if err != nil && !errors.Is(err, acme.ErrAccountAlreadyExists) {
		return nil, fmt.Errorf("registering the account: %w", err)
	}
	if _, ahead := a.state(); clock && ahead.Abs() > maxAhead {
		return nil, fmt.Errorf("this machine's clock differs from the authority's by %s, and the last certificate's dates didn't fit: no other one is asked for; %w", ahead.Abs().Round(time.Minute), errClock)
	}
	order, err := m.order(ctx, client, host)
	if err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{DNSNames: []string{host}}, key)
	if err != nil {
		return nil, err
	}
	chain, _, err := client.CreateCertFromOrder(ctx, order, csr, true)
	if err != nil {
		return nil, fmt.Errorf("finalizing the order: %w", err)
	}
	pair, err := pairOf(chain, key, host)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUnusable, err)
	}
	if early := time.Until(pair.Leaf.NotBefore); early > 0 && early <= maxEarly {
		if err := worker.Sleep(ctx, early); err != nil {
			return nil, err
		}
	}
	return pair, usable(pair.Leaf, host, time.Now())
}

// order makes an order for the host, and answers the authority's challenges. If a challenge of
// one type fails, order makes another order and tries the next type. It returns an order that
// can be finalized.
func (m *Manager) order(ctx context.Context, client *acme.Client, host string) (*acme.Order, error) {
	types := []string{tlsALPN}
	if m.o.HTTP {
		types = []string{http01, tlsALPN}
	}
	var problems []error
	for _, typ := range types {
		order, err := client.AuthorizeOrder(ctx, acme.DomainIDs(host))
		if err != nil {
			return nil, errors.Join(append(problems, fmt.Errorf("making an order: %w", err))...)
		}
		for _, url := range order.AuthzURLs {
			if err = m.authorize(ctx, client, host, url, typ); err != nil {
				break
			}
		}
		if err == nil {
			if order, err = client.WaitOrder(ctx, order.URI); err == nil {
				return order, nil
			}
		}
		problems = append(problems, fmt.Errorf("%s: %w", typ, err))
		if ctx.Err() != nil {
			break
		}
	}
	return nil, errors.Join(problems...)
}

// authorize proves to the authority that this registry is the host, by a challenge of the given
// type, unless that has been proven already.
func (m *Manager) authorize(ctx context.Context, client *acme.Client, host, url, typ string) error {
	authorization, err := client.GetAuthorization(ctx, url)
	if err != nil {
		return err
	}
	if authorization.Status == acme.StatusValid {
		return nil
	}
	for _, challenge := range authorization.Challenges {
		if challenge.Type != typ {
			continue
		}
		done, err := m.answer(ctx, client, challenge, host)
		if err != nil {
			return err
		}
		defer done()
		if _, err := client.Accept(ctx, challenge); err != nil {
			return err
		}
		_, err = client.WaitAuthorization(ctx, url)
		return err
	}
	return errNoChallenge
}

// answer stores the answer to a challenge, which each replica can then give. The returned
// function deletes it.
func (m *Manager) answer(ctx context.Context, client *acme.Client, c *acme.Challenge, host string) (done func(), err error) {
	if len(c.Token) > maxToken || !isToken(c.Token) {
		return nil, errors.New("the authority's challenge has no valid token")
	}
	if c.Type == http01 {
		text, err := client.HTTP01ChallengeResponse(c.Token)
		if err != nil {
			return nil, err
		}
		return m.storeChallenge(ctx, http01, c.Token, text)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	cert, err := client.TLSALPN01ChallengeCert(c.Token, host, acme.WithKey(key))
	if err != nil {
		return nil, err
	}
	text, err := encode(&cert)
	if err != nil {
		return nil, err
	}
	return m.storeChallenge(ctx, tlsALPN, host, text)
}

// pairOf returns the certificate that the authority has issued. It returns an error if the
// certificate isn't one for this key and host.
func pairOf(chain [][]byte, key crypto.Signer, host string) (*tls.Certificate, error) {
	if len(chain) == 0 {
		return nil, errors.New("the authority has sent no certificate")
	}
	content, err := encode(&tls.Certificate{Certificate: chain, PrivateKey: key})
	if err != nil {
		return nil, err
	}
	pair, err := decode(content)
	if err != nil {
		return nil, err
	}
	return pair, fits(pair.Leaf, host)
}

// fits returns an error unless the certificate is one by which a server can be the host.
func fits(leaf *x509.Certificate, host string) error {
	if err := leaf.VerifyHostname(host); err != nil {
		return err
	}
	server := len(leaf.ExtKeyUsage) == 0 && len(leaf.UnknownExtKeyUsage) == 0
	for _, usage := range leaf.ExtKeyUsage {
		server = server || usage == x509.ExtKeyUsageServerAuth || usage == x509.ExtKeyUsageAny
	}
	if !server {
		return errors.New("it isn't for servers")
	}
	return nil
}

// usable returns an error unless the certificate is one for the host that is valid at a time.
func usable(leaf *x509.Certificate, host string, now time.Time) error {
	if err := fits(leaf, host); err != nil {
		return fmt.Errorf("%w: %w", errUnusable, err)
	}
	if now.Before(leaf.NotBefore) || now.After(leaf.NotAfter) {
		return fmt.Errorf("%w: it is valid from %s until %s, and now it is %s here; %w", errUnusable,
			leaf.NotBefore.UTC().Format(time.RFC3339), leaf.NotAfter.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339), errClock)
	}
	return nil
}
