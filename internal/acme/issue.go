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
)

const (
	tlsALPN = "tls-alpn-01"
	http01  = "http-01"
	// maxRetries is how often a request to the authority is repeated after an answer 5xx, or
	// after one that says that its nonce was used before.
	maxRetries = 5
)

var errNoChallenge = errors.New("the authority offers no challenge that can be answered")

// issue obtains a certificate for the host from the authority.
func (m *Manager) issue(ctx context.Context, host string) (*tls.Certificate, error) {
	account, err := m.accountKey(ctx)
	if err != nil {
		return nil, err
	}
	client := &acme.Client{
		Key: account, HTTPClient: m.client, DirectoryURL: m.o.DirectoryURL, UserAgent: "purser",
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
	return pairOf(chain, key, host)
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
// certificate isn't one for this key and host that is valid now.
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
		return nil, fmt.Errorf("the authority's certificate: %w", err)
	}
	if err := pair.Leaf.VerifyHostname(host); err != nil {
		return nil, fmt.Errorf("the authority's certificate: %w", err)
	}
	return pair, nil
}
