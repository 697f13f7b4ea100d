package api

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

// TestCredentialsStayAtTheRegistry: a registry that redirects to another host must not make the
// client send its credentials there.
func TestCredentialsStayAtTheRegistry(t *testing.T) {
	t.Parallel()
	var calls int
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { calls++ }))
	t.Cleanup(other.Close)
	for _, status := range []int{301, 302, 303, 307, 308} {
		c := answering(t, func(w http.ResponseWriter, r *http.Request) {
			if got := r.Header.Get("Authorization"); got != "Bearer secret" {
				t.Errorf("the registry gets %q", got)
			}
			w.Header().Set("Location", other.URL+r.URL.Path)
			w.WriteHeader(status)
		}).With(Credentials{Token: "secret", From: "a test"})
		for _, method := range []string{"GET", "POST", "PUT", "DELETE"} {
			err := c.Do(t.Context(), method, "/user", nil, map[string]string{"x": "y"}, nil)
			if err == nil || !strings.Contains(err.Error(), "sends to "+other.URL) || strings.Contains(err.Error(), "secret") {
				t.Errorf("%s answered with %d: %v", method, status, err)
			}
		}
	}
	if calls != 0 {
		t.Errorf("the other host got %d requests", calls)
	}
}

// TestPlainHTTP: credentials aren't sent unencrypted to another machine unless that is allowed,
// and the other machine isn't even called.
func TestPlainHTTP(t *testing.T) {
	t.Parallel()
	for server, refused := range map[string]bool{
		"http://registry.example":  true,
		"http://10.1.2.3:5000":     true,
		"http://localhost.example": true,
		"http://127.0.0.1.example": true,
		"http://[2001:db8::1]":     true,
		"https://registry.example": false,
		"http://127.0.0.2:5000":    false,
		"http://[::1]":             false,
		"http://localhost:5000":    false,
	} {
		u, err := ParseServer(server)
		if err != nil {
			t.Fatal(err)
		}
		withUser := *u
		withUser.User = url.UserPassword("ann", "secret")
		for name, c := range map[string]*Client{
			"a token":           NewClient(u).With(Credentials{Token: "secret"}),
			"a password":        NewClient(u).With(Credentials{Name: "ann", Password: "secret"}),
			"a user in the URL": NewClient(&withUser),
		} {
			var asked bool
			c.http.Transport = roundTrip(func(*http.Request) (*http.Response, error) {
				asked = true
				return nil, errors.New("no network")
			})
			err := c.Get(t.Context(), "/user", nil, nil)
			if err == nil || asked == refused || strings.Contains(err.Error(), "unencrypted") != refused || strings.Contains(err.Error(), "secret") {
				t.Errorf("%s to %s: asked %v, %v", name, server, asked, err)
			}
			allowed := c.With(Credentials{Token: c.credentials.Token, Name: c.credentials.Name, Insecure: true})
			asked = false
			if err := allowed.Get(t.Context(), "/user", nil, nil); !asked {
				t.Errorf("%s to %s, although it is allowed: %v", name, server, err)
			}
		}
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestUnauthorized(t *testing.T) {
	t.Parallel()
	c := answering(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(401)
		_, _ = w.Write([]byte(`{"detail": "log in first"}`))
	})
	key := ServerKey(c.Server())
	for want, k := range map[string]Credentials{
		"log in first\nLog in with \"purser login " + key + "\"": {},
		"log in first": {Name: "ann", Password: "x"},
		"log in first\nThe registry doesn't accept the token of $X: log in with \"purser login " + key + "\"": {Token: "t", From: "$X"},
	} {
		err := c.With(k).Get(t.Context(), "/user", nil, nil)
		if e, ok := errors.AsType[*Error](err); !ok || e.Status != 401 || e.Detail != want {
			t.Errorf("%+v: %v, want %q", k, err, want)
		}
	}
}

func TestNeedsLogin(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]bool{200: false, 401: true} {
		c := answering(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/v2/" || r.Header["Authorization"] != nil {
				t.Errorf("%s with the header %q", r.URL.Path, r.Header["Authorization"])
			}
			w.WriteHeader(status)
		}).With(Credentials{Token: "secret"})
		if got, err := c.NeedsLogin(t.Context()); got != want || err != nil {
			t.Errorf("%d: %v, %v", status, got, err)
		}
	}
	c := answering(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(404) })
	if _, err := c.NeedsLogin(t.Context()); err == nil || !strings.Contains(err.Error(), "not as a Purser registry does") {
		t.Errorf("no registry: %v", err)
	}
}

func TestServerKey(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"registry.example":                 "https://registry.example",
		"https://Registry.Example:443/":    "https://registry.example",
		"http://registry.example:443":      "http://registry.example:443",
		"http://registry.example:80":       "http://registry.example",
		"https://ann:x@registry.example:1": "https://registry.example:1",
		"[::1]:5000":                       "http://[::1]:5000",
		"http://[::1]:80":                  "http://[::1]",
	} {
		u, err := ParseServer(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := ServerKey(u); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}
