package acme_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/purser-registry/purser/internal/acme"
	"github.com/purser-registry/purser/internal/acme/acmetest"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/worker"
)

func TestMain(m *testing.M) { dbtest.MainWithoutLeaks(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// logText is a log that a test can read while the manager writes.
type logText struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// replica is a manager with listeners, as a replica of the registry has them.
type replica struct {
	*acme.Manager
	tls, http net.Listener
	log       *logText
}

func (r *replica) tlsPort() int  { return r.tls.Addr().(*net.TCPAddr).Port }
func (r *replica) httpPort() int { return r.http.Addr().(*net.TCPAddr).Port }

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { l.Close() }) //nolint:errcheck // its server has closed it
	return l
}

// listeners returns a replica without a manager, since an authority must know the ports before
// there is a manager.
func listeners(t *testing.T) *replica {
	t.Helper()
	return &replica{tls: listen(t), http: listen(t), log: new(logText)}
}

// serve makes the replica's manager and serves with it.
func (r *replica) serve(t *testing.T, d *db.DB, a *acmetest.Authority, with ...func(*acme.Options)) *replica {
	t.Helper()
	o := acme.Options{
		DB: d, Hosts: []string{"localhost"}, DirectoryURL: a.DirectoryURL, Email: "registry@example.com", AcceptTerms: true,
		Roots: a.Roots, Replica: uuid.New(), Log: slog.New(slog.NewTextHandler(r.log, nil)), Metrics: prometheus.NewRegistry(),
	}
	for _, change := range with {
		change(&o)
	}
	var err error
	r.Manager, err = acme.New(o)
	must(t, err)
	quiet := slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	secure := &http.Server{TLSConfig: acme.TLSConfig(r.GetCertificate), ErrorLog: quiet, Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}
	plain := &http.Server{ErrorLog: quiet, Handler: r.Handler("")}
	var servers sync.WaitGroup
	servers.Go(func() { secure.ServeTLS(r.tls, "", "") }) //nolint:errcheck // it ends with the test
	servers.Go(func() { plain.Serve(r.http) })            //nolint:errcheck // it ends with the test
	t.Cleanup(func() {
		secure.Close() //nolint:errcheck
		plain.Close()  //nolint:errcheck
		servers.Wait()
	})
	return r
}

// run runs the manager until the test ends or calls `stop`.
func (r *replica) run(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the manager ended: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// served returns the certificate that a client gets that asks for `name`.
func (r *replica) served(name string, roots *x509.CertPool) (*x509.Certificate, error) {
	c, err := tls.Dial("tcp", r.tls.Addr().String(), &tls.Config{ServerName: name, RootCAs: roots})
	if err != nil {
		return nil, err
	}
	defer c.Close() //nolint:errcheck // nothing is sent
	return c.ConnectionState().PeerCertificates[0], nil
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for !ok() {
		if worker.Sleep(ctx, 20*time.Millisecond) != nil {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

func withHTTP(o *acme.Options) { o.HTTP = true }

// left returns the names of the table's rows without their keys.
func left(t *testing.T, d *db.DB) string {
	t.Helper()
	var kinds string
	must(t, d.Pool.QueryRow(t.Context(), "SELECT coalesce(string_agg(split_part(name, ' ', 1), ' ' ORDER BY name), '') FROM acmecertificates").Scan(&kinds))
	return kinds
}

// TestIssue: replica "asking" obtains a certificate, by challenges of each type. The authority
// connects to replica "answering" instead, which must answer from the database. Then both
// replicas serve the same certificate, and no challenge or lease is left.
func TestIssue(t *testing.T) {
	t.Parallel()
	for _, typ := range []string{"tls-alpn-01", "http-01"} {
		t.Run(typ, func(t *testing.T) {
			t.Parallel()
			d := dbtest.New(t)
			asking, answering := listeners(t), listeners(t)
			a := acmetest.New(t, acmetest.Options{TLSPort: answering.tlsPort(), HTTPPort: answering.httpPort()})
			a.Start(t)
			var with []func(*acme.Options)
			if typ == "http-01" {
				with = append(with, withHTTP)
			}
			asking.serve(t, d, a, with...)
			answering.serve(t, d, a, with...)
			if _, err := asking.served("localhost", nil); err == nil {
				t.Error("a certificate is served before there is one")
			}
			if !asking.ValidUntil().IsZero() {
				t.Errorf("valid until %v before there is a certificate", asking.ValidUntil())
			}
			must(t, asking.Batch(t.Context()))
			must(t, answering.Batch(t.Context()))
			if n := a.Issued(); n != 1 {
				t.Errorf("%d certificates were issued, want 1", n)
			}
			if byHTTP := strings.Contains(a.Log(), "validate w/ HTTP"); byHTTP != (typ == "http-01") {
				t.Errorf("validated over HTTP: %v", byHTTP)
			}
			one, err := asking.served("LOCALHOST", a.Trust(t))
			must(t, err)
			other, err := answering.served("localhost", a.Trust(t))
			must(t, err)
			if one.SerialNumber.Cmp(other.SerialNumber) != 0 {
				t.Errorf("the replicas have certificates %v and %v", one.SerialNumber, other.SerialNumber)
			}
			if !asking.ValidUntil().Equal(one.NotAfter) {
				t.Errorf("valid until %v, want %v", asking.ValidUntil(), one.NotAfter)
			}
			if got := left(t, d); got != "account certificate" {
				t.Errorf("the table has %s", got)
			}
			if text := asking.log.String(); strings.Contains(text, "PRIVATE") || !strings.Contains(text, "has issued a certificate") {
				t.Errorf("the log is %s", text)
			}
		})
	}
}

// TestSecondChallengeType: nobody answers at the port of http-01, so the certificate is
// obtained by tls-alpn-01.
func TestSecondChallengeType(t *testing.T) {
	t.Parallel()
	d, r := dbtest.New(t), listeners(t)
	a := acmetest.New(t, acmetest.Options{TLSPort: r.tlsPort(), HTTPPort: 1})
	a.Start(t)
	r.serve(t, d, a, withHTTP)
	must(t, r.Batch(t.Context()))
	if n := a.Issued(); n != 1 {
		t.Errorf("%d certificates were issued, want 1", n)
	}
}

// TestReplicasShare: five replicas start at once, without a certificate. One certificate is
// issued, and each replica serves it. A replica that starts later serves it even though the
// authority has gone.
func TestReplicasShare(t *testing.T) {
	t.Parallel()
	d, first := dbtest.New(t), listeners(t)
	a := acmetest.New(t, acmetest.Options{TLSPort: first.tlsPort()})
	a.Start(t)
	replicas := []*replica{first.serve(t, d, a)}
	for range 4 {
		replicas = append(replicas, listeners(t).serve(t, d, a))
	}
	for _, r := range replicas {
		r.run(t)
	}
	roots := a.Trust(t)
	for i, r := range replicas {
		eventually(t, fmt.Sprintf("replica %d has the certificate", i), func() bool {
			_, err := r.served("localhost", roots)
			return err == nil
		})
	}
	if n := a.Issued(); n != 1 {
		t.Errorf("%d certificates were issued, want 1", n)
	}
	late := listeners(t).serve(t, d, a, func(o *acme.Options) { o.Roots = x509.NewCertPool() }) // it can't reach the authority
	must(t, late.Batch(t.Context()))
	if _, err := late.served("localhost", roots); err != nil {
		t.Errorf("after a restart: %v", err)
	}
}

// TestRenewal: certificates live for 15 seconds. Two replicas run until the first certificate
// is renewed. At any time, each serves a valid certificate, and each certificate is issued once.
func TestRenewal(t *testing.T) {
	t.Parallel()
	const lifetime = 15 * time.Second
	d, one, other := dbtest.New(t), listeners(t), listeners(t)
	a := acmetest.New(t, acmetest.Options{TLSPort: other.tlsPort(), Validity: lifetime})
	a.Start(t)
	one.serve(t, d, a).run(t)
	other.serve(t, d, a).run(t)
	roots, serials := a.Trust(t), map[string]bool{}
	for _, r := range []*replica{one, other} {
		eventually(t, "the first certificate", func() bool { _, err := r.served("localhost", roots); return err == nil })
	}
	eventually(t, "a renewal", func() bool {
		for _, r := range []*replica{one, other} {
			cert, err := r.served("localhost", roots)
			must(t, err)
			serials[cert.SerialNumber.String()] = true
		}
		return len(serials) == 2
	})
	if n := a.Issued(); n != 2 {
		t.Errorf("%d certificates were issued, want 2", n)
	}
}

// TestAuthorityIsDown: the authority doesn't answer. A replica serves the certificate that is
// in the database; a replica without one begins to serve when the authority answers again.
func TestAuthorityIsDown(t *testing.T) {
	t.Parallel()
	d, r := dbtest.New(t), listeners(t)
	a := acmetest.New(t, acmetest.Options{TLSPort: r.tlsPort()})
	r.serve(t, d, a).run(t)
	eventually(t, "an error in the log", func() bool { return strings.Contains(r.log.String(), a.DirectoryURL) })
	if _, err := r.served("localhost", nil); err == nil {
		t.Error("a certificate is served though there is none")
	}
	a.Start(t)
	roots := a.Trust(t)
	eventually(t, "the certificate", func() bool { _, err := r.served("localhost", roots); return err == nil })
	if strings.Contains(left(t, d), "failure") {
		t.Error("an authority that doesn't answer counts as one that refuses")
	}
}

// TestRefusals: the authority can't reach a host. The failure is stored, so that neither this
// replica nor another tries again at once. The other host gets its certificate nevertheless.
// Retry allows the next attempt.
func TestRefusals(t *testing.T) {
	t.Parallel()
	d, r := dbtest.New(t), listeners(t)
	a := acmetest.New(t, acmetest.Options{TLSPort: r.tlsPort()})
	a.Start(t)
	hosts := func(o *acme.Options) { o.Hosts = []string{"purser.invalid", "localhost"} }
	r.serve(t, d, a, hosts)
	other := listeners(t).serve(t, d, a, hosts)
	for range 3 {
		must(t, r.Batch(t.Context()))
		must(t, other.Batch(t.Context()))
	}
	text := r.log.String() + other.log.String()
	if n := strings.Count(text, "has refused a certificate"); n != 1 || !strings.Contains(text, "purser.invalid") || !strings.Contains(text, "again_in=2m0s") {
		t.Errorf("%d refusals are logged:\n%s", n, text)
	}
	if _, err := r.served("localhost", a.Trust(t)); err != nil {
		t.Errorf("the other host: %v", err)
	}
	if !r.ValidUntil().IsZero() {
		t.Error("a host without a certificate doesn't show in ValidUntil")
	}
	must(t, other.Retry(t.Context()))
	must(t, r.Batch(t.Context()))
	if n := strings.Count(r.log.String(), "has refused a certificate"); n != 2 {
		t.Errorf("%d refusals are logged after Retry, want 2", n)
	}
	must(t, r.Batch(t.Context()))
	if n := strings.Count(r.log.String(), "has refused a certificate"); n != 2 {
		t.Errorf("%d refusals are logged, want 2", n)
	}
}

// TestBrokenRow: the certificate in the database can't be read, so it is issued again.
func TestBrokenRow(t *testing.T) {
	t.Parallel()
	d, r := dbtest.New(t), listeners(t)
	a := acmetest.New(t, acmetest.Options{TLSPort: r.tlsPort()})
	a.Start(t)
	_, err := d.Pool.Exec(t.Context(), "INSERT INTO acmecertificates (name, content) VALUES ($1, 'x')", "certificate "+a.DirectoryURL+" localhost")
	must(t, err)
	r.serve(t, d, a)
	must(t, r.Batch(t.Context()))
	if _, err := r.served("localhost", a.Trust(t)); err != nil {
		t.Error(err)
	}
}

// TestLeaseOfADeadReplica: a replica has died while it obtained a certificate. Another replica
// waits until the lease ends, and then obtains it.
func TestLeaseOfADeadReplica(t *testing.T) {
	t.Parallel()
	d, r := dbtest.New(t), listeners(t)
	a := acmetest.New(t, acmetest.Options{TLSPort: r.tlsPort()})
	a.Start(t)
	_, err := d.Pool.Exec(t.Context(), "INSERT INTO acmecertificates (name, content) VALUES ($1, 'x')", "lease "+a.DirectoryURL+" localhost")
	must(t, err)
	r.serve(t, d, a)
	must(t, r.Batch(t.Context()))
	if n := a.Issued(); n != 0 {
		t.Fatalf("%d certificates were issued beside another replica", n)
	}
	_, err = d.Pool.Exec(t.Context(), "UPDATE acmecertificates SET updated_at = updated_at - interval '5 minutes'")
	must(t, err)
	must(t, r.Batch(t.Context()))
	if n := a.Issued(); n != 1 {
		t.Errorf("%d certificates were issued, want 1", n)
	}
}

// TestNames: a client without SNI gets the certificate of the first host, and the log says so
// once. A client that asks for another name is refused, without a query or an issuance.
func TestNames(t *testing.T) {
	t.Parallel()
	d, r := dbtest.New(t), listeners(t)
	a := acmetest.New(t, acmetest.Options{TLSPort: r.tlsPort()})
	a.Start(t)
	r.serve(t, d, a)
	hello := func(name string, protocols ...string) error {
		_, err := r.GetCertificate(&tls.ClientHelloInfo{ServerName: name, SupportedProtos: protocols})
		return err
	}
	if err := hello(""); err == nil || !strings.Contains(err.Error(), "no certificate for localhost yet") {
		t.Errorf("without a name and a certificate: %v", err)
	}
	must(t, r.Batch(t.Context()))
	for range 2 {
		c, err := tls.Dial("tcp", r.tls.Addr().String(), &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // no name is sent for an address
		must(t, err)
		if cert := c.ConnectionState().PeerCertificates[0]; cert.VerifyHostname("localhost") != nil {
			t.Errorf("the certificate is for %s", cert.DNSNames)
		}
		c.Close() //nolint:errcheck
	}
	if n := strings.Count(r.log.String(), "names no host (SNI)"); n != 1 {
		t.Errorf("the log says %d times that there is no name", n)
	}
	for _, name := range []string{"other.example", "a.localhost", "localhost.example", "xn--", "\x00"} {
		if err := hello(name); err == nil || !strings.Contains(err.Error(), "http.tls.acme.hosts") {
			t.Errorf("%q: %v", name, err)
		}
		if err := hello(name, "acme-tls/1"); err == nil || !strings.Contains(err.Error(), "http.tls.acme.hosts") {
			t.Errorf("%q, challenge: %v", name, err)
		}
	}
	for _, name := range []string{"localhost", "localhost.", "LocalHost"} {
		must(t, hello(name))
	}
	if n := a.Issued(); n != 1 {
		t.Errorf("%d certificates were issued, want 1", n)
	}
}

// TestPlainRequests: port 80 redirects to https, only for the registry's hosts, and has no
// answers for tokens that don't exist.
func TestPlainRequests(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	m, err := acme.New(acme.Options{DB: d, Hosts: []string{"r.example", "s.example"}, AcceptTerms: true, Metrics: prometheus.NewRegistry()})
	must(t, err)
	_, err = d.Pool.Exec(t.Context(), "INSERT INTO acmecertificates (name, content) VALUES ('http-01 abc-_9', 'abc.key'), ('account x', 'secret')")
	must(t, err)
	const at = "/.well-known/acme-challenge/"
	for _, c := range []struct {
		method, host, path, external string
		status                       int
		location, body               string
	}{
		{"GET", "r.example", "/v2/?n=1&l=%2F", "", 302, "https://r.example/v2/?n=1&l=%2F", ""},
		{"HEAD", "R.Example:80", "/", "", 302, "https://r.example/", ""},
		{"GET", "s.example.", "//evil.example/x", "", 302, "https://s.example//evil.example/x", ""},
		{"GET", "r.example", "/v2/", "https://R.example:8443", 302, "https://R.example:8443/v2/", ""},
		{"GET", "s.example", "/v2/", "https://r.example:8443", 302, "https://s.example/v2/", ""},
		{"GET", "evil.example", "/", "", 421, "", "http.tls.acme.hosts"},
		{"GET", "", "/", "", 421, "", "http.tls.acme.hosts"},
		{"GET", "r.example@evil.example", "/", "", 421, "", ""},
		{"POST", "r.example", "/v2/", "", 403, "", "use https"},
		{"GET", "r.example", at + "abc-_9", "", 200, "", "abc.key"},
		{"GET", "10.0.0.7", at + "abc-_9", "", 200, "", "abc.key"},
		{"GET", "r.example", at + "abc", "", 404, "", ""},
		{"GET", "r.example", at, "", 404, "", ""},
		{"GET", "r.example", at + "abc-_9/x", "", 404, "", ""},
		{"GET", "r.example", at + "%27%20OR%201", "", 404, "", ""},
		{"GET", "r.example", at + strings.Repeat("a", 300), "", 404, "", ""},
	} {
		req, err := http.NewRequestWithContext(t.Context(), c.method, c.path, nil)
		if err != nil {
			req, err = http.NewRequestWithContext(t.Context(), c.method, "/", nil)
		}
		must(t, err)
		req.Host = c.host
		if strings.HasPrefix(c.path, "//") { // as a server parses it
			req.URL.Host, req.URL.Path = "", c.path
		}
		res := answer(m.Handler(c.external), req)
		body, err := io.ReadAll(res.Body)
		must(t, err)
		if res.StatusCode != c.status || res.Header.Get("Location") != c.location || !strings.Contains(string(body), c.body) {
			t.Errorf("%s %s %s: %d %s %q, want %d %s %q", c.method, c.host, c.path, res.StatusCode, res.Header.Get("Location"), body, c.status, c.location, c.body)
		}
	}
}

func answer(h http.Handler, r *http.Request) *http.Response {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func TestOptions(t *testing.T) {
	t.Parallel()
	d := &db.DB{}
	for _, o := range []acme.Options{{}, {DB: d, AcceptTerms: true}, {DB: d, Hosts: []string{"a"}}, {Hosts: []string{"a"}, AcceptTerms: true}} {
		o.Metrics = prometheus.NewRegistry()
		if _, err := acme.New(o); err == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
}
