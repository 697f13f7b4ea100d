package session

import (
	"crypto/tls"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

func TestCookie(t *testing.T) {
	t.Parallel()
	secret := strings.Repeat("s", secretLength)
	for _, tt := range []struct {
		external, host string
		tls            bool
		want           string // the name of the cookie; "": none
	}{
		{"", "registry.example", true, secureCookie},
		{"", "localhost:5000", true, secureCookie},
		{"http://registry.example", "registry.example", true, secureCookie},
		{"https://registry.example", "registry.example", false, secureCookie},
		{"https://registry.example", "127.0.0.1:5000", false, secureCookie}, // a proxy's
		{"", "localhost:5000", false, loopbackCookie},
		{"", "LOCALHOST", false, loopbackCookie},
		{"", "app.localhost:5000", false, loopbackCookie},
		{"", "127.0.0.1:5000", false, loopbackCookie},
		{"", "127.8.8.8", false, loopbackCookie},
		{"", "[::1]:5000", false, loopbackCookie},
		{"", "[::1]", false, loopbackCookie},
		{"", "[::ffff:127.0.0.1]:5000", false, loopbackCookie},
		{"http://localhost:5000", "localhost:5000", false, loopbackCookie},
		{"", "registry.example", false, ""},
		{"http://registry.example", "registry.example", false, ""},
		{"", "192.0.2.1:5000", false, ""},
		{"", "127.0.0.1.example", false, ""},
		{"", "localhost.example:5000", false, ""},
		{"", "notlocalhost", false, ""},
		{"", "", false, ""},
	} {
		s, err := NewSessions(Options{DB: &db.DB{}, ExternalURL: tt.external, MaxAge: time.Hour})
		must(t, err)
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/auth/login", nil)
		r.Host = tt.host
		if tt.tls {
			r.TLS = &tls.ConnectionState{}
		}
		// Whatever its scheme, a browser might send both cookies.
		r.AddCookie(&http.Cookie{Name: secureCookie, Value: secureCookie})
		r.AddCookie(&http.Cookie{Name: loopbackCookie, Value: loopbackCookie})
		if got := s.Secret(r); got != tt.want {
			t.Errorf("%+v: the secret is of %q", tt, got)
		}
		w := httptest.NewRecorder()
		err = s.SetCookie(w, r, secret)
		set := w.Result().Header.Values("Set-Cookie")
		if tt.want == "" {
			var refused *oci.Error
			if !errors.As(err, &refused) || !strings.Contains(err.Error(), "https") || len(set) != 0 {
				t.Errorf("%+v: %v, cookie %q", tt, err, set)
			}
			continue
		}
		want := tt.want + "=" + secret + "; Path=/; Max-Age=3600; HttpOnly; "
		if tt.want == secureCookie {
			want += "Secure; "
		}
		want += "SameSite=Lax"
		if err != nil || len(set) != 1 || set[0] != want {
			t.Errorf("%+v: %v, cookie %q, want %q", tt, err, set, want)
		}
		w = httptest.NewRecorder()
		s.ClearCookie(w, r)
		if got := w.Result().Cookies(); len(got) != 1 || got[0].Name != tt.want || got[0].Value != "" || got[0].MaxAge != -1 || got[0].Path != "/" {
			t.Errorf("%+v: cleared by %+v", tt, got)
		}
	}
}

func TestOptions(t *testing.T) {
	t.Parallel()
	for _, o := range []Options{
		{},
		{DB: &db.DB{}, Idle: time.Second},
		{DB: &db.DB{}, MaxAge: -time.Hour},
		{DB: &db.DB{}, ExternalURL: "registry.example"},
	} {
		if _, err := NewSessions(o); err == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
}

// TestCookieBehindProxy: a proxy received the request over https, and the server knows that from
// it. Then the cookie is the one for https, also if the proxy has replaced the host by loopback.
func TestCookieBehindProxy(t *testing.T) {
	t.Parallel()
	s, err := NewSessions(Options{DB: &db.DB{}, MaxAge: time.Hour})
	must(t, err)
	for _, host := range []string{"registry.example", "127.0.0.1:5000"} {
		r := httptest.NewRequestWithContext(Encrypted(t.Context()), http.MethodPost, "/auth/login", nil)
		r.Host = host
		r.AddCookie(&http.Cookie{Name: secureCookie, Value: "secret"})
		if secure, err := s.Secure(r); !secure || err != nil || s.Secret(r) != "secret" {
			t.Errorf("%s: secure %v, %v, secret %q", host, secure, err, s.Secret(r))
		}
	}
}
