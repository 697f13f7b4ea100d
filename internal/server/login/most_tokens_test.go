package login_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// federate gives a robot a rule, and returns the ids of its rules.
func federate(t *testing.T, r *servertest.Registry, robot string) (ids []uuid.UUID) {
	t.Helper()
	rule := auth.Federation{Issuer: "https://issuer.example", Audience: "purser.example", Claims: map[string]string{"sub": "app"}}
	if err := r.Auth.SetFederations(t.Context(), robot, []auth.Federation{rule}); err != nil {
		t.Fatal(err)
	}
	list, err := r.Auth.Federations(t.Context(), robot)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range list {
		ids = append(ids, f.ID)
	}
	return ids
}

// TestOldestTokensEnd: of the secrets that clients get by themselves there may be as many as is
// set. One more is not refused, since nobody could log in any more, but ends the oldest.
func TestOldestTokensEnd(t *testing.T) {
	t.Parallel()
	const most = 2
	r := closed(t, nil, func(o *servertest.Options) {
		o.Access.Most = auth.Most{RefreshTokens: most, FederatedTokens: most + 1}
	})
	if _, _, err := r.Auth.CreateRobot(t.Context(), "acme", "ci", "", auth.Limits{}, nil); err != nil {
		t.Fatal(err)
	}
	rules := federate(t, r, "acme+ci")
	var refresh, federated []int
	var tokens, secrets []string
	for i := range 5 {
		tokens = append(tokens, refreshToken(t, r, "root", "password-of-root"))
		secret, err := r.Auth.CreateFederatedToken(t.Context(), "acme+ci", rules, fmt.Sprint(i), time.Now().Add(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		secrets = append(secrets, secret)
	}
	for i := range 5 {
		refresh = append(refresh, useRefresh(t, r, tokens[i]).StatusCode)
		federated = append(federated, r.Do(t, "GET", "/v2/", "", servertest.Basic("acme+ci", secrets[i])...).StatusCode)
	}
	if want := []int{401, 401, 401, 200, 200}; !slices.Equal(refresh, want) {
		t.Errorf("the refresh tokens get %d, want %d", refresh, want)
	}
	if want := []int{401, 401, 200, 200, 200}; !slices.Equal(federated, want) {
		t.Errorf("the secrets of pipelines get %d, want %d", federated, want)
	}
}

// TestTokensEndWithinTheirClient: one pipeline asks for the secrets of a robot again and again, and ends
// its own oldest ones, and not that of a quiet pipeline.
func TestTokensEndWithinTheirClient(t *testing.T) {
	t.Parallel()
	r := closed(t, nil, func(o *servertest.Options) { o.Access.Most = auth.Most{RefreshTokens: 3, FederatedTokens: 3} })
	if _, _, err := r.Auth.CreateRobot(t.Context(), "acme", "ci", "", auth.Limits{}, nil); err != nil {
		t.Fatal(err)
	}
	rules := federate(t, r, "acme+ci")
	var got []int
	var secrets []string
	for _, subject := range []string{"quiet", "loud", "loud", "loud", "loud", "loud"} {
		secret, err := r.Auth.CreateFederatedToken(t.Context(), "acme+ci", rules, subject, time.Now().Add(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		secrets = append(secrets, secret)
	}
	for _, secret := range secrets {
		got = append(got, r.Do(t, "GET", "/v2/", "", servertest.Basic("acme+ci", secret)...).StatusCode)
	}
	if want := []int{200, 401, 401, 401, 200, 200}; !slices.Equal(got, want) {
		t.Errorf("the secrets get %d, want %d", got, want)
	}
	// An expired token is deleted before any valid one.
	r.Exec(t, "UPDATE credentials SET expires_at = now() - interval '1 s' WHERE title = 'quiet'")
	if _, err := r.Auth.CreateFederatedToken(t.Context(), "acme+ci", rules, "loud", time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	for i, secret := range secrets[4:] {
		if a := r.Do(t, "GET", "/v2/", "", servertest.Basic("acme+ci", secret)...); a.StatusCode != 200 {
			t.Errorf("secret %d: %d", i+4, a.StatusCode)
		}
	}
}
