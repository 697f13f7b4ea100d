package redispulls_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/pullstats/redispulls"
	"github.com/purser-registry/purser/internal/pullstats/redistest"
)

// TestRedisRoots: a Redis whose certificate is signed by an authority of its own is trusted by Trust and
// not without it.
func TestRedisRoots(t *testing.T) {
	t.Parallel()
	plain := redistest.Start(t).Socket
	pair := httptest.NewUnstartedServer(nil)
	pair.StartTLS()
	t.Cleanup(pair.Close)
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: pair.TLS.Certificates, MinVersion: tls.VersionTLS12})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("unix", plain)
			if err != nil {
				from.Close()
				continue
			}
			go func() { io.Copy(to, from); to.Close() }()
			go func() { io.Copy(from, to); from.Close() }()
		}
	}()
	roots := x509.NewCertPool()
	roots.AddCert(pair.Certificate())
	for name, trusted := range map[string]*x509.CertPool{"without its authority": nil, "with its authority": roots} {
		r, err := redispulls.NewClient("rediss://"+l.Addr().String(), nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Trust(trusted)
		err = r.Ping(t.Context())
		if (err == nil) != (trusted != nil) || err != nil && !strings.Contains(err.Error(), "certificate") {
			t.Errorf("%s: %v", name, err)
		}
		r.Close()
	}
}

// TestRedisWait: a Redis that answers nothing is waited for as long as Wait says.
func TestRedisWait(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() }) // the kernel accepts connections, and nobody answers
	r, err := redispulls.NewClient("redis://"+l.Addr().String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	r.Wait(100 * time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := r.Ping(ctx); err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), "timeout") {
		t.Errorf("the error is %v", err)
	}
}
