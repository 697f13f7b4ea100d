package identity

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// TestProviderRoots: a provider whose certificate is signed by an authority of its own is trusted by
// Options.Roots and not without them.
func TestProviderRoots(t *testing.T) {
	t.Parallel()
	var issuer string
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(map[string]any{ //nolint:errcheck // the client sees it
			"issuer": issuer, "authorization_endpoint": issuer + "/auth", "token_endpoint": issuer + "/token", "jwks_uri": issuer + "/keys",
			"id_token_signing_alg_values_supported": []string{"RS256"},
		})
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // of refused certificates
	server.StartTLS()
	t.Cleanup(server.Close)
	issuer = server.URL
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	for name, trusted := range map[string]*x509.CertPool{"without its authority": nil, "with its authority": roots} {
		p, err := NewProvider(ProviderOptions{Issuer: issuer, ClientID: "purser", Roots: trusted})
		if err != nil {
			t.Fatal(err)
		}
		err = p.Check(t.Context())
		if (err == nil) != (trusted != nil) || err != nil && (!errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "certificate")) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestProviderTimeout: a provider that answers nothing is waited for as long as Options.Timeout says.
func TestProviderTimeout(t *testing.T) {
	t.Parallel()
	over := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-over:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(over) })
	p, err := NewProvider(ProviderOptions{Issuer: server.URL, ClientID: "purser", Timeout: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := p.Check(ctx); !errors.Is(err, ErrUnavailable) || ctx.Err() != nil {
		t.Errorf("the error is %v", err)
	}
}
