package login_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/server/servertest"
)

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
	var refresh, federated []int
	var tokens, secrets []string
	for i := range 5 {
		tokens = append(tokens, refreshToken(t, r, "root", "password-of-root"))
		secret, err := r.Auth.CreateFederatedToken(t.Context(), "acme+ci", fmt.Sprint(i), time.Now().Add(time.Hour))
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
