package acmetest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"
)

// The paths of a Scripted's resources. Answer takes one of them.
const (
	Directory = "/directory"
	Nonce     = "/nonce"
	Account   = "/account"
	NewOrder  = "/new-order"
	Order     = "/order"
	Authz     = "/authz"
	Finalize  = "/finalize"
	Cert      = "/cert"
)

// Scripted is a certificate authority that does what a test says: it issues certificates that
// shouldn't be used, never ends an answer, or sends a client away for years. It checks no
// signatures and no challenges: each host counts as proven.
type Scripted struct {
	DirectoryURL string
	Roots        *x509.CertPool // has the certificate of the ACME server itself
	server       *httptest.Server
	ca           *x509.Certificate
	caKey        *ecdsa.PrivateKey

	mu       sync.Mutex
	answers  map[string]http.HandlerFunc
	template func(*x509.Certificate)
	key      *ecdsa.PrivateKey // of the certificates; nil: the client's
	requests map[string]int
	chain    []byte // what was issued last
	serial   int64
}

// NewScripted starts an authority that issues good certificates, until the test says something
// else. The test's end stops it.
func NewScripted(t testing.TB) *Scripted {
	t.Helper()
	s := &Scripted{answers: map[string]http.HandlerFunc{}, requests: map[string]int{}, serial: 1}
	var err error
	s.caKey, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		NotBefore: time.Now().Add(-10_000 * time.Hour), NotAfter: time.Now().Add(10_000 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &s.caKey.PublicKey, s.caKey)
	must(t, err)
	s.ca, err = x509.ParseCertificate(der)
	must(t, err)
	s.server = httptest.NewTLSServer(s)
	t.Cleanup(s.server.Close)
	s.DirectoryURL = s.server.URL + Directory
	s.Roots = x509.NewCertPool()
	s.Roots.AddCert(s.server.Certificate())
	return s
}

// Trust returns the roots of the certificates that the authority issues.
func (s *Scripted) Trust() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(s.ca)
	return pool
}

// Answer makes h answer all requests for a resource; nil: as RFC 8555 says.
func (s *Scripted) Answer(path string, h http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers[path] = h
}

// Issue makes the authority change each certificate before it signs it, and use another key
// than the client's if `key` isn't nil.
func (s *Scripted) Issue(change func(*x509.Certificate), key *ecdsa.PrivateKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.template, s.key = change, key
}

// Requests returns how many requests there were for a resource.
func (s *Scripted) Requests(path string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests[path]
}

func (s *Scripted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.requests[r.URL.Path]++
	h := s.answers[r.URL.Path]
	s.mu.Unlock()
	if r.URL.Path != Directory { // so that clients ask for a nonce
		w.Header().Set("Replay-Nonce", rand.Text())
	}
	if h != nil {
		h(w, r)
		return
	}
	s.Good(w, r)
}

// Good answers a request as RFC 8555 says.
func (s *Scripted) Good(w http.ResponseWriter, r *http.Request) {
	u := s.server.URL
	order := map[string]any{"status": "ready", "authorizations": []string{u + Authz}, "finalize": u + Finalize}
	switch r.URL.Path {
	case Directory:
		send(w, 200, map[string]any{"newNonce": u + Nonce, "newAccount": u + Account, "newOrder": u + NewOrder})
	case Account:
		w.Header().Set("Location", u+Account+"/1")
		send(w, 201, map[string]any{"status": "valid"})
	case NewOrder:
		w.Header().Set("Location", u+Order)
		send(w, 201, order)
	case Order:
		send(w, 200, order)
	case Authz:
		send(w, 200, map[string]any{"status": "valid", "identifier": map[string]string{"type": "dns", "value": "localhost"}})
	case Finalize:
		if err := s.sign(r); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		order["status"], order["certificate"] = "valid", u+Cert
		send(w, 200, order)
	case Cert:
		s.mu.Lock()
		defer s.mu.Unlock()
		w.Header().Set("Content-Type", "application/pem-certificate-chain")
		w.Write(s.chain) //nolint:errcheck // the client is gone
	}
}

// Refuse answers with a problem (RFC 7807) of the given type.
func Refuse(w http.ResponseWriter, status int, problem, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(map[string]any{"type": "urn:ietf:params:acme:error:" + problem, "detail": detail, "status": status}) //nolint:errcheck,errchkjson // the client is gone
}

func send(w http.ResponseWriter, status int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(value) //nolint:errcheck,errchkjson // the client is gone
}

// sign issues the certificate for the request of a Finalize.
func (s *Scripted) sign(r *http.Request) error {
	var jws struct{ Payload string }
	var payload struct{ CSR string }
	if err := json.NewDecoder(r.Body).Decode(&jws); err != nil {
		return err
	}
	text, err := base64.RawURLEncoding.DecodeString(jws.Payload)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, &payload); err != nil {
		return err
	}
	der, err := base64.RawURLEncoding.DecodeString(payload.CSR)
	if err != nil {
		return err
	}
	csr, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return fmt.Errorf("the request for a certificate: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.serial++
	template := &x509.Certificate{
		SerialNumber: big.NewInt(s.serial), DNSNames: csr.DNSNames, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(90 * 24 * time.Hour),
	}
	if s.template != nil {
		s.template(template)
	}
	public := csr.PublicKey
	if s.key != nil {
		public = &s.key.PublicKey
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, s.ca, public, s.caKey)
	if err != nil {
		return err
	}
	s.chain = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})
	return nil
}
