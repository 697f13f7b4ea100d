package login_test

import (
	"fmt"
	"testing"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/auth/identity"
	"github.com/purser-registry/purser/internal/auth/identity/identitytest"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// TestWrongPasswordsFromASharedAddress: somebody sends wrong passwords until the address is shut,
// and wrong tokens of pipelines too. From the same address, the following still log in: pipelines
// by their own tokens, robots by their secrets, people by personal tokens, and accounts that have
// logged in there before.
func TestWrongPasswordsFromASharedAddress(t *testing.T) {
	t.Parallel()
	issuer := identitytest.NewIssuer(t)
	r := closed(t, map[string]auth.Role{"ann": auth.Writer, "bob": auth.Reader}, func(o *servertest.Options) {
		o.Access.Federation = identity.NewVerifier(identity.VerifierOptions{AllowPrivate: true})
	})
	_, secret, err := r.Auth.CreateRobot(t.Context(), "acme", "ci", "", auth.Limits{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	rule := auth.Federation{Issuer: issuer.URL, Audience: "purser.example", Claims: map[string]string{"sub": "app"}}
	if err := r.Auth.SetFederations(t.Context(), "acme+ci", []auth.Federation{rule}); err != nil {
		t.Fatal(err)
	}
	_, personal, err := r.Auth.CreateToken(t.Context(), &auth.Principal{Name: "bob"}, "laptop", auth.Limits{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	login := func(name, pass string) int {
		return r.Do(t, "GET", "/auth/session", "", servertest.Basic(name, pass)...).StatusCode
	}
	if code := login("ann", servertest.PasswordOf("ann")); code != 200 {
		t.Fatalf("the first log-in: %d", code)
	}
	forged := identitytest.NewIssuer(t).Sign(t, map[string]any{"aud": "purser.example", "sub": "app", "iss": issuer.URL})
	// On a slow machine the limits recover meanwhile, so it goes on until both are reached.
	passwords, tokens := 0, 0
	for n := 0; n < 1000 && (passwords != 429 || tokens != 429); n++ {
		passwords = login(fmt.Sprint("nobody", n), "wrong")
		tokens = login(fmt.Sprint("storm+robot", n), forged)
	}
	if passwords != 429 || tokens != 429 {
		t.Errorf("further wrong passwords and tokens: %d and %d, want 429", passwords, tokens)
	}
	for what, credentials := range map[string][2]string{
		"a pipeline by its token": {"acme+ci", issuer.Sign(t, map[string]any{"aud": "purser.example", "sub": "app"})},
		"a robot by its secret":   {"acme+ci", secret},
		"a personal token":        {"bob", personal},
		"a known account":         {"ann", servertest.PasswordOf("ann")},
	} {
		if code := login(credentials[0], credentials[1]); code != 200 {
			t.Errorf("%s: %d, want 200", what, code)
		}
	}
}
