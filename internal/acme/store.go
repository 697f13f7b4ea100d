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
//	failure DIRECTORY HOST       how often issuing failed, and how many seconds to wait after updated_at
//	lease DIRECTORY HOST         the replica that issues
//	tls-alpn-01 HOST             a challenge's key and certificate, PEM
//	http-01 TOKEN                a challenge's answer

// cleanupTimeout limits statements that must also run when the registry stops.
const cleanupTimeout = 5 * time.Second

// load reads the certificates of the hosts. It keeps the ones that it has read before, unless
// their rows have changed. It logs a row that it can't read, and ignores it.
func (m *Manager) load(ctx context.Context) error {
	rows, err := m.o.DB.Pool.Query(ctx, `
		SELECT right(name, -length($1)), convert_from(content, 'UTF8')
		FROM acmecertificates
		WHERE name = ANY (SELECT $1 || host FROM unnest($2::text[]) AS host)`, "certificate "+m.o.DirectoryURL+" ", m.o.Hosts)
	if err != nil {
		return fmt.Errorf("reading the certificates: %w", err)
	}
	type row struct{ Host, Content string }
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
	if err != nil {
		return fmt.Errorf("reading the certificates: %w", err)
	}
	before, now := *m.certs.Load(), map[string]*certificate{}
	for _, r := range list {
		if c := before[r.Host]; c != nil && c.content == r.Content {
			now[r.Host] = c
			continue
		}
		pair, err := decode(r.Content)
		if err != nil {
			m.o.Log.ErrorContext(ctx, "a certificate in the database can't be read; it is issued again", "host", r.Host, "error", err)
			continue
		}
		now[r.Host] = &certificate{pair, r.Content}
	}
	m.certs.Store(&now)
	return nil
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
// if another replica has the lease. The lease of a replica that has died ends after leaseTime.
func (m *Manager) lease(ctx context.Context, host string) (release func(), err error) {
	name := m.o.DirectoryURL + " " + host
	tag, err := m.o.DB.Pool.Exec(ctx, `
		INSERT INTO acmecertificates AS lease (name, content) VALUES ('lease ' || $1, convert_to($2, 'UTF8'))
		ON CONFLICT (name) DO UPDATE SET content = excluded.content, updated_at = now()
		WHERE lease.updated_at < now() - $3::interval`, name, m.o.Replica.String(), leaseTime)
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
}

func (m *Manager) lastFailure(ctx context.Context, host string) (failure, error) {
	var content string
	var age time.Duration
	err := m.o.DB.Pool.QueryRow(ctx, `
		SELECT convert_from(content, 'UTF8'), now() - updated_at FROM acmecertificates WHERE name = 'failure ' || $1`,
		m.o.DirectoryURL+" "+host).Scan(&content, &age)
	if errors.Is(err, pgx.ErrNoRows) {
		return failure{}, nil
	}
	if err != nil {
		return failure{}, fmt.Errorf("reading the last failure: %w", err)
	}
	count, seconds, _ := strings.Cut(content, " ")
	n, err := strconv.Atoi(count)
	wait, err2 := strconv.ParseInt(seconds, 10, 64)
	if err := errors.Join(err, err2); err != nil {
		return failure{}, fmt.Errorf("reading the last failure: %w", err)
	}
	return failure{n, time.Duration(wait)*time.Second - age}, nil
}

func (m *Manager) storeFailure(ctx context.Context, host string, failures int, wait time.Duration) error {
	_, err := m.o.DB.Pool.Exec(ctx, `
		INSERT INTO acmecertificates (name, content) VALUES ('failure ' || $1, convert_to($2, 'UTF8'))
		ON CONFLICT (name) DO UPDATE SET content = excluded.content, updated_at = now()`,
		m.o.DirectoryURL+" "+host, fmt.Sprintf("%d %d", failures, int64(wait/time.Second)))
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
