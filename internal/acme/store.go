package acme

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// The rows of acmecertificates have these names, where DIRECTORY is the authority's URL:
//
//	account DIRECTORY            the account's key, PEM
//	certificate DIRECTORY HOST   a certificate's key and its chain, PEM
//	failure DIRECTORY HOST       how often issuing failed, how many seconds to wait after updated_at,
//	                             and "clock" if a certificate's dates didn't fit the clock
//	lease DIRECTORY HOST         the replica that issues
//	tls-alpn-01 HOST             a challenge's key and certificate, PEM
//	http-01 TOKEN                a challenge's answer

// cleanupTimeout limits statements that must also run when the registry stops.
const cleanupTimeout = 5 * time.Second

// row is the row of a host's certificate.
type row struct {
	Host    string
	Content []byte
	Age     time.Duration // by the database's clock
}

// load reads the certificates of the hosts. A certificate that it has read before stays in use
// if its row is gone or can't be read, or if the row has one that isn't valid now although the
// old one is.
func (m *Manager) load(ctx context.Context) error {
	rows, err := m.o.DB.Pool.Query(ctx, `
		SELECT right(name, -length($1)), content, greatest(now() - updated_at, interval '0')
		FROM acmecertificates
		WHERE name = ANY (SELECT $1 || host FROM unnest($2::text[]) AS host)`, "certificate "+m.o.DirectoryURL+" ", m.o.Hosts)
	if err != nil {
		return fmt.Errorf("reading the certificates: %w", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
	if err != nil {
		return fmt.Errorf("reading the certificates: %w", err)
	}
	now := map[string]*certificate{}
	for host, old := range *m.certs.Load() {
		now[host] = &certificate{pair: old.pair, content: old.content, since: old.since, lost: true}
	}
	for _, r := range list {
		if c := m.choose(ctx, now[r.Host], r); c != nil {
			now[r.Host] = c
		}
	}
	m.certs.Store(&now)
	return nil
}

// choose returns the certificate to use from now on: that of the row or the old one, nil for none.
func (m *Manager) choose(ctx context.Context, old *certificate, r row) *certificate {
	since, content := time.Now().Add(-r.Age), string(r.Content)
	if old != nil && old.content == content {
		return &certificate{pair: old.pair, content: old.content, since: since}
	}
	pair, err := decode(content)
	if err == nil {
		err = fits(pair.Leaf, r.Host)
	}
	if err != nil {
		m.ignore(ctx, r, "a certificate in the database can't be used; another one is obtained", err)
		return old
	}
	now := time.Now()
	if err := usable(pair.Leaf, r.Host, now); err != nil && old != nil && usable(old.pair.Leaf, r.Host, now) == nil {
		m.ignore(ctx, r, "a certificate in the database isn't valid now, so the old one stays in use", err)
		return &certificate{pair: old.pair, content: old.content, since: old.since}
	}
	delete(m.ignored, r.Host)
	return &certificate{pair: pair, content: content, since: since}
}

// ignore says in the log, once, that a row isn't used.
func (m *Manager) ignore(ctx context.Context, r row, text string, err error) {
	if m.ignored[r.Host] == string(r.Content) {
		return
	}
	m.ignored[r.Host] = string(r.Content)
	m.o.Log.ErrorContext(ctx, text, "host", r.Host, "error", err)
}

func (m *Manager) storeCertificate(ctx context.Context, host string, pair *tls.Certificate) error {
	content, err := encode(pair)
	if err != nil {
		return err
	}
	_, err = m.o.DB.Pool.Exec(ctx, `
		WITH failure AS (
			DELETE FROM acmecertificates WHERE name = 'failure ' || $1
		)
		INSERT INTO acmecertificates (name, content) VALUES ('certificate ' || $1, convert_to($2, 'UTF8'))
		ON CONFLICT (name) DO UPDATE SET content = excluded.content, updated_at = now()`,
		m.o.DirectoryURL+" "+host, content)
	if err != nil {
		return fmt.Errorf("storing the certificate: %w", err)
	}
	return nil
}

// lease tries to take the lease of the host's certificate. `release` gives it back; it is nil
// if another replica has the lease. The lease of a replica that has died ends after leaseTime,
// and one that was taken when the database's clock ran ahead has ended.
func (m *Manager) lease(ctx context.Context, host string) (release func(), err error) {
	name := m.o.DirectoryURL + " " + host
	tag, err := m.o.DB.Pool.Exec(ctx, `
		INSERT INTO acmecertificates AS lease (name, content) VALUES ('lease ' || $1, convert_to($2, 'UTF8'))
		ON CONFLICT (name) DO UPDATE SET content = excluded.content, updated_at = now()
		WHERE lease.updated_at < now() - $3::interval OR lease.updated_at > now() + $3::interval`, name, m.o.Replica.String(), leaseTime)
	if err != nil {
		return nil, fmt.Errorf("taking the lease: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return nil, nil
	}
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		_, err := m.o.DB.Pool.Exec(ctx, `
			DELETE FROM acmecertificates WHERE name = 'lease ' || $1 AND content = convert_to($2, 'UTF8')`, name, m.o.Replica.String())
		if err != nil {
			m.o.Log.WarnContext(ctx, "a lease of ACME wasn't given back; it ends by itself", "host", host, "after", leaseTime, "error", err)
		}
	}, nil
}

// failure describes the last failure for a host, as all replicas know it.
type failure struct {
	failures int           // in a row
	wait     time.Duration // until the next attempt; 0 or less: make it now
	clock    bool          // a certificate's dates didn't fit this machine's clock
}

// lastFailure reads the host's last failure. A row that nobody could have written counts as a
// first failure: it mustn't keep the host from its certificate.
func (m *Manager) lastFailure(ctx context.Context, host string) (failure, error) {
	var content []byte
	var age time.Duration
	err := m.o.DB.Pool.QueryRow(ctx, `
		SELECT content, greatest(now() - updated_at, interval '0') FROM acmecertificates WHERE name = 'failure ' || $1`,
		m.o.DirectoryURL+" "+host).Scan(&content, &age)
	if errors.Is(err, pgx.ErrNoRows) {
		return failure{}, nil
	}
	if err != nil {
		return failure{}, fmt.Errorf("reading the last failure: %w", err)
	}
	f := failure{failures: 1, wait: failurePause}
	if fields := strings.Fields(string(content)); len(fields) >= 2 {
		n, err := strconv.Atoi(fields[0])
		s, err2 := strconv.ParseInt(fields[1], 10, 64)
		if err == nil && err2 == nil && n > 0 {
			seconds := min(max(s, 0), int64(maxFailurePause/time.Second))
			f = failure{failures: n, wait: time.Duration(seconds) * time.Second, clock: len(fields) > 2 && fields[2] == "clock"}
		}
	}
	f.wait -= age
	return f, nil
}

func (m *Manager) storeFailure(ctx context.Context, host string, f failure) error {
	content := fmt.Sprintf("%d %d", f.failures, int64(f.wait/time.Second))
	if f.clock {
		content += " clock"
	}
	_, err := m.o.DB.Pool.Exec(ctx, `
		INSERT INTO acmecertificates (name, content) VALUES ('failure ' || $1, convert_to($2, 'UTF8'))
		ON CONFLICT (name) DO UPDATE SET content = excluded.content, updated_at = now()`,
		m.o.DirectoryURL+" "+host, content)
	if err != nil {
		return fmt.Errorf("storing the failure: %w", err)
	}
	return nil
}

func (m *Manager) forgetFailures(ctx context.Context) error {
	_, err := m.o.DB.Pool.Exec(ctx, `
		DELETE FROM acmecertificates WHERE name = ANY (SELECT $1 || host FROM unnest($2::text[]) AS host)`,
		"failure "+m.o.DirectoryURL+" ", m.o.Hosts)
	if err != nil {
		return fmt.Errorf("forgetting failures: %w", err)
	}
	return nil
}

// storeChallenge stores a challenge's answer, under the host for tls-alpn-01 and under the
// token for http-01. The returned function deletes it. Answers of replicas that died before
// they deleted them are deleted after a day.
func (m *Manager) storeChallenge(ctx context.Context, typ, key, content string) (done func(), err error) {
	name := typ + " " + key
	_, err = m.o.DB.Pool.Exec(ctx, `
		WITH old AS (
			DELETE FROM acmecertificates WHERE name ~ '^(http-01|tls-alpn-01) ' AND name <> $1 AND updated_at < now() - interval '1 day'
		)
		INSERT INTO acmecertificates (name, content) VALUES ($1, convert_to($2, 'UTF8'))
		ON CONFLICT (name) DO UPDATE SET content = excluded.content, updated_at = now()`, name, content)
	if err != nil {
		return nil, fmt.Errorf("storing the challenge's answer: %w", err)
	}
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		if _, err := m.o.DB.Pool.Exec(ctx, `DELETE FROM acmecertificates WHERE name = $1`, name); err != nil {
			m.o.Log.WarnContext(ctx, "a challenge's answer wasn't deleted; it is deleted later", "type", typ, "error", err)
		}
	}, nil
}

// challenge returns a challenge's answer, and "" if there is none.
func (m *Manager) challenge(ctx context.Context, typ, key string) (content string, err error) {
	err = m.o.DB.Pool.QueryRow(ctx, `
		SELECT convert_from(content, 'UTF8') FROM acmecertificates WHERE name = $1`, typ+" "+key).Scan(&content)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return "", fmt.Errorf("reading the challenge's answer: %w", err)
	}
	return content, nil
}

func (m *Manager) challengeCertificate(ctx context.Context, host string) (*tls.Certificate, error) {
	content, err := m.challenge(ctx, tlsALPN, host)
	if err != nil {
		return nil, err
	}
	if content == "" {
		return nil, fmt.Errorf("acme: there is no challenge for %s", host)
	}
	return decode(content)
}

// accountKey returns the key of the account at the authority. The first replica that needs it
// makes it.
func (m *Manager) accountKey(ctx context.Context) (crypto.Signer, error) {
	fresh, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	text, err := encode(&tls.Certificate{PrivateKey: fresh})
	if err != nil {
		return nil, err
	}
	var content string
	// The update changes nothing. It makes the statement return the row that was there.
	err = m.o.DB.Pool.QueryRow(ctx, `
		INSERT INTO acmecertificates AS account (name, content) VALUES ('account ' || $1, convert_to($2, 'UTF8'))
		ON CONFLICT (name) DO UPDATE SET content = account.content
		RETURNING convert_from(content, 'UTF8')`, m.o.DirectoryURL, text).Scan(&content)
	if err != nil {
		return nil, fmt.Errorf("reading the account's key: %w", err)
	}
	block, _ := pem.Decode([]byte(content))
	if block == nil {
		return nil, errors.New("the account's key in the database isn't PEM")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("reading the account's key: %w", err)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, errors.New("the account's key in the database can't sign")
	}
	return signer, nil
}

// encode returns the key and the certificates as PEM.
func encode(pair *tls.Certificate) (string, error) {
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		return "", fmt.Errorf("writing a key: %w", err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})
	for _, cert := range pair.Certificate {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})...)
	}
	return string(text), nil
}

// decode parses what encode has written, and checks that the key is the certificate's.
func decode(text string) (*tls.Certificate, error) {
	pair, err := tls.X509KeyPair([]byte(text), []byte(text))
	if err != nil {
		return nil, err
	}
	return &pair, nil
}
