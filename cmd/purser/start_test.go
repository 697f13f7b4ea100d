package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/cmd/purser/internal/serve"
	"github.com/purser-registry/purser/cmd/purser/internal/servetest"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
)

// freeAddress returns an address of loopback at which nothing listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// request sends a request with a body of some bytes, and returns the answer; without one the text is the
// error.
func request(t *testing.T, method, url string) (status int, header http.Header, text string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(strings.Repeat("x", 1000)))
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, nil, err.Error()
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Error(err)
	}
	return res.StatusCode, res.Header, string(body)
}

// A server that waits for its database refuses requests at once and says when to come back, instead
// of letting clients wait, and says to its operators what it waits for. When the database is there, it
// serves.
func TestRequestsDuringTheStart(t *testing.T) {
	t.Parallel()
	dsn := dbtest.EmptyDSN(t)
	owner := dbtest.Open(t, dsn)
	role := fmt.Sprintf("starting_%d", time.Now().UnixNano())
	for _, sql := range []string{"CREATE ROLE " + role + " LOGIN CONNECTION LIMIT 0", "ALTER DATABASE " + owner.Pool.Config().ConnConfig.Database + " OWNER TO " + role} {
		if _, err := owner.Pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	limited := dsnWith(t, dsn, func(u *url.URL, _ url.Values) { u.User = url.User(role) })
	registry, debug := freeAddress(t), freeAddress(t)
	cfg := servetest.Config(t, "PURSER_DATABASE_MAIN="+limited, "PURSER_HTTP_ADDR="+registry, "PURSER_HTTP_DEBUG_ADDR="+debug)
	log, ended := new(servetest.Log), make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		ended <- serve.Run(ctx, cfg, new(servetest.Log), slog.New(slog.NewTextHandler(log, nil)), nil)
	}()
	servetest.WaitFor(t, "requests are refused", func() bool {
		status, header, text := request(t, http.MethodGet, "http://"+registry+"/v2/")
		return status == http.StatusServiceUnavailable && header.Get("Retry-After") != "" && strings.Contains(text, `"code":"UNAVAILABLE"`)
	})
	for _, method := range []string{http.MethodHead, http.MethodPost, http.MethodPut} {
		if status, header, text := request(t, method, "http://"+registry+"/v2/acme/app/blobs/uploads/"); status != http.StatusServiceUnavailable || header.Get("Retry-After") == "" {
			t.Errorf("%s: %d %s", method, status, text)
		}
	}
	if status, _, text := request(t, http.MethodGet, "http://"+debug+"/readyz"); status != http.StatusServiceUnavailable || !strings.Contains(text, "it waits for the database, which isn't available") {
		t.Errorf("/readyz: %d %s", status, text)
	}
	if status, _, _ := request(t, http.MethodGet, "http://"+debug+"/healthz"); status != http.StatusOK {
		t.Errorf("/healthz: %d", status)
	}
	servetest.WaitFor(t, "the log says what the server waits for", func() bool {
		return strings.Contains(log.String(), "the server isn't ready yet") && strings.Contains(log.String(), "waits_for=\"the database, which isn't available")
	})
	if _, err := owner.Pool.Exec(t.Context(), "ALTER ROLE "+role+" CONNECTION LIMIT 100"); err != nil {
		t.Fatal(err)
	}
	servetest.WaitFor(t, "it serves", func() bool {
		select {
		case err := <-ended:
			t.Fatalf("the server ends: %v\n%s", err, log)
		default:
		}
		status, _, _ := request(t, http.MethodGet, "http://"+registry+"/v2/")
		return status == http.StatusOK
	})
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A server that waits until another one has migrated the database, which may take hours, doesn't let
// clients wait for that, and says what it waits for.
func TestRequestsDuringAMigration(t *testing.T) {
	t.Parallel()
	dsn := dbtest.EmptyDSN(t)
	other, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close(t.Context()) //nolint:errcheck // nothing is lost
	if err := db.LockSchema(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	registry, debug := freeAddress(t), freeAddress(t)
	cfg := servetest.Config(t, "PURSER_DATABASE_MAIN="+dsn, "PURSER_HTTP_ADDR="+registry, "PURSER_HTTP_DEBUG_ADDR="+debug)
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { ended <- serve.Run(ctx, cfg, new(servetest.Log), quiet, nil) }()
	servetest.WaitFor(t, "/readyz says that the server waits for another process", func() bool {
		status, _, text := request(t, http.MethodGet, "http://"+debug+"/readyz")
		return status == http.StatusServiceUnavailable && strings.Contains(text, "it waits for another process, which migrates")
	})
	if status, header, text := request(t, http.MethodGet, "http://"+registry+"/v2/"); status != http.StatusServiceUnavailable || header.Get("Retry-After") == "" {
		t.Errorf("a request beside a migration: %d %s", status, text)
	}
	if err := db.UnlockSchema(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	servetest.WaitFor(t, "it serves", func() bool {
		status, _, _ := request(t, http.MethodGet, "http://"+registry+"/v2/")
		return status == http.StatusOK
	})
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A server with certificates by ACME, which are in the database, can't answer before that is there. It
// ends the connections of clients instead of letting them wait, at the address of challenges too.
func TestACMEDuringTheStart(t *testing.T) {
	t.Parallel()
	registry, debug, challenges := freeAddress(t), freeAddress(t), freeAddress(t)
	cfg := servetest.Config(t, "PURSER_DATABASE_MAIN=postgres://purser@"+freeAddress(t)+"/purser?sslmode=disable", "PURSER_HTTP_ADDR="+registry, "PURSER_HTTP_DEBUG_ADDR="+debug,
		"PURSER_AUTH_ENABLED=false", "PURSER_HTTP_TLS_ACME_HOSTS=localhost", "PURSER_HTTP_TLS_ACME_ACCEPT_TERMS=true", "PURSER_HTTP_TLS_ACME_HTTP_ADDR="+challenges)
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { ended <- serve.Run(ctx, cfg, new(servetest.Log), quiet, nil) }()
	servetest.WaitFor(t, "/readyz says that the database isn't available", func() bool {
		_, _, text := request(t, http.MethodGet, "http://"+debug+"/readyz")
		return strings.Contains(text, "it waits for the database, which isn't available")
	})
	conn, err := net.Dial("tcp", registry)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	within, stop := context.WithTimeout(t.Context(), 30*time.Second)
	defer stop()
	if err := tls.Client(conn, &tls.Config{ServerName: "localhost"}).HandshakeContext(within); err == nil || within.Err() != nil {
		t.Errorf("a handshake ends with %v (%v)", err, within.Err())
	}
	if status, header, text := request(t, http.MethodGet, "http://"+challenges+"/.well-known/acme-challenge/x"); status != http.StatusServiceUnavailable || header.Get("Retry-After") == "" {
		t.Errorf("a challenge: %d %s", status, text)
	}
	cancel()
	if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
		t.Logf("the start ends with %v", err)
	}
}

// A server whose start fails lets go of its address, and its clients aren't left without an answer.
func TestFailedStartLetsGo(t *testing.T) {
	t.Parallel()
	registry := freeAddress(t)
	cfg := servetest.Config(t, "PURSER_DATABASE_MAIN="+dsnWith(t, dbtest.EmptyDSN(t), func(u *url.URL, _ url.Values) { u.Path = "/no_such_database" }), "PURSER_HTTP_ADDR="+registry)
	if err := serve.Run(t.Context(), cfg, io.Discard, quiet, nil); err == nil || !strings.Contains(err.Error(), "no_such_database") {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", registry)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}

// TestReadyRegistryServes: a client sends a request as soon as the registry says that it is ready. The
// registry must answer with 200, however long its start took.
func TestReadyRegistryServes(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	answer := make(chan int, 1)
	err := serve.RunFor(ctx, servetest.Config(t, "PURSER_DATABASE_MAIN="+dbtest.DSN(t)), quiet, nil, func(url string) {
		status, _, _ := request(t, http.MethodGet, url+"/v2/")
		answer <- status
		cancel()
	})
	if err != nil {
		t.Error(err)
	}
	if status := <-answer; status != http.StatusOK {
		t.Errorf("the first answer has the status %d", status)
	}
}
