package servertest

import (
	"encoding/base64"
	"fmt"
	"net/url"
	"testing"

	"golang.org/x/crypto/argon2"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/auth/password"
	"github.com/purser-registry/purser/internal/auth/session"
	"github.com/purser-registry/purser/internal/auth/throttle"
	"github.com/purser-registry/purser/internal/auth/token"
)

// control makes the access control, with defaults for what the options leave out.
func (r *Registry) control(t testing.TB, o auth.Options) *auth.Control {
	t.Helper()
	var err error
	o.DB = r.DB
	if o.Tokens == nil {
		if o.Tokens, err = token.NewKeys(token.Options{DB: r.DB, Issuer: "purser", Service: "purser"}); err != nil {
			t.Fatal(err)
		}
	}
	if o.Passwords == nil {
		o.Passwords = password.NewHasher(password.HasherOptions{})
	}
	if o.Verified == nil {
		o.Verified = password.NewCache(password.CacheOptions{})
	}
	if o.Failures == nil {
		o.Failures = throttle.NewFailures(throttle.FailuresOptions{DB: r.DB})
	}
	if o.Sessions == nil {
		if o.Sessions, err = session.NewSessions(session.Options{DB: r.DB}); err != nil {
			t.Fatal(err)
		}
	}
	if r.Auth, err = auth.New(o); err != nil {
		t.Fatal(err)
	}
	return r.Auth
}

// AddAccount creates a person's account with the password "password-of-NAME".
func (r *Registry) AddAccount(t testing.TB, name string, superuser bool) auth.Account {
	t.Helper()
	a, err := r.Auth.CreateAccount(t.Context(), auth.NewAccount{Name: name, PasswordHash: cheapHash(PasswordOf(name)), Superuser: superuser})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// cheapHash returns a hash that takes much less time to make and to verify than the registry's
// own: most log-ins of tests are only a way to something else.
func cheapHash(password string) string {
	salt := []byte("salt of servertest")
	key := argon2.IDKey([]byte(password), salt, 1, 64, 1, 32)
	text := base64.RawStdEncoding.EncodeToString
	return fmt.Sprintf("$argon2id$v=%d$m=64,t=1,p=1$%s$%s", argon2.Version, text(salt), text(key))
}

// PasswordOf returns the password of an account that AddAccount has created.
func PasswordOf(name string) string { return "password-of-" + name }

// Grant gives an account a role in a namespace or, if `resource` has a slash, in a repository.
func (r *Registry) Grant(t testing.TB, resource, account string, role auth.Role) {
	t.Helper()
	of := auth.OfRepository(resource)
	if of.Namespace == resource {
		of = auth.OfNamespace(resource)
	}
	if err := r.Auth.SetGrant(t.Context(), of, account, "", role); err != nil {
		t.Fatal(err)
	}
}

// AddRobot creates a robot of a namespace that exists, which has the role in the whole namespace. It
// returns the headers with which the robot sends a request.
func (r *Registry) AddRobot(t testing.TB, namespace, short string, role auth.Role) []string {
	t.Helper()
	a, secret, err := r.Auth.CreateRobot(t.Context(), namespace, short, "", auth.Limits{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Grant(t, namespace, a.Name, role)
	return Basic(a.Name, secret)
}

// With returns the same registry, to which requests without an Authorization header are sent
// with these headers.
func (r *Registry) With(headers []string) *Registry {
	c := *r
	c.credentials = headers
	return &c
}

// As returns the headers with which an account of AddAccount sends a request.
func As(name string) []string { return Basic(name, PasswordOf(name)) }

// Basic returns the header of Basic authentication.
func Basic(name, password string) []string {
	return []string{"Authorization", "Basic " + base64.StdEncoding.EncodeToString([]byte(name+":"+password))}
}

// Token fetches a registry token for the scopes, with the given headers.
func (r *Registry) Token(t testing.TB, headers []string, scopes ...string) string {
	t.Helper()
	var out struct{ Token string }
	r.Do(t, "GET", "/token?"+url.Values{"service": {"purser"}, "scope": scopes}.Encode(), "", headers...).Into(t, 200, &out)
	return out.Token
}

// Bearer returns the header of a token.
func Bearer(token string) []string { return []string{"Authorization", "Bearer " + token} }
