package login_test

import (
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/auth/identity"
	"github.com/purser-registry/purser/internal/auth/identity/identitytest"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// TestFederation: a pipeline logs in with its own token as the password of a robot, or exchanges
// it for a secret that ends with the token. Other tokens are refused, without a word about why.
func TestFederation(t *testing.T) {
	t.Parallel()
	issuer := identitytest.NewIssuer(t)
	r := closed(t, nil, func(o *servertest.Options) {
		o.Access.Federation = identity.NewVerifier(identity.VerifierOptions{AllowPrivate: true})
	})
	const robot, exchange, manifest = "acme+ci", "/oauth2/federation/robot/token", "/v2/acme/app/manifests/v1"
	_, secret, err := r.Auth.CreateRobot(t.Context(), "acme", "ci", "", auth.Limits{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Grant(t, "acme", robot, auth.Reader)
	rule := auth.Federation{Issuer: issuer.URL, Audience: "purser.example", Claims: map[string]string{"sub": "repo:acme/app:ref:refs/heads/*"}}
	if err := r.Auth.SetFederations(t.Context(), robot, []auth.Federation{rule}); err != nil {
		t.Fatal(err)
	}
	claims := func(change ...any) map[string]any {
		m := map[string]any{"aud": "purser.example", "sub": "repo:acme/app:ref:refs/heads/main", "repository": "acme/app", "ref": "refs/heads/main"}
		for i := 0; i < len(change); i += 2 {
			m[change[i].(string)] = change[i+1]
		}
		return m
	}
	good := issuer.Sign(t, claims())
	r.Do(t, "GET", manifest, "", servertest.Basic(robot, good)...).Want(t, 200, "")
	token := r.Token(t, servertest.Basic(robot, good), "repository:acme/app:pull,push")
	r.Do(t, "GET", manifest, "", servertest.Bearer(token)...).Want(t, 200, "")
	end := time.Now().Add(5 * time.Minute)
	for _, method := range []string{"GET", "POST"} {
		var out struct {
			Token     string
			ExpiresAt time.Time `json:"expires_at"`
		}
		r.Do(t, method, exchange, "", servertest.Basic(robot, good)...).Into(t, 200, &out)
		if !strings.HasPrefix(out.Token, "purser_fed_") || out.ExpiresAt.After(end) || out.ExpiresAt.Before(time.Now().Add(4*time.Minute)) {
			t.Errorf("the secret %.12s… ends at %s", out.Token, out.ExpiresAt)
		}
		r.Do(t, "GET", manifest, "", servertest.Basic(robot, out.Token)...).Want(t, 200, "")
		r.Do(t, "GET", manifest, "", servertest.Bearer(out.Token)...).Want(t, 200, "")
		r.Do(t, method, exchange, "", servertest.Basic(robot, out.Token)...).WantStatus(t, 403) // else it would never end
	}
	r.Do(t, "GET", exchange, "", servertest.Basic(robot, secret)...).WantStatus(t, 403)
	if a := r.Do(t, "GET", exchange, "").WantStatus(t, 401); a.Header.Get("WWW-Authenticate") == "" {
		t.Error("the challenge is missing")
	}
	other := identitytest.NewIssuer(t)
	wrong := r.Do(t, "GET", exchange, "", servertest.Basic(robot, "x")...).WantStatus(t, 401)
	for what, token := range map[string]string{
		"another branch":   issuer.Sign(t, claims("sub", "repo:acme/app:ref:refs/tags/v1")),
		"another owner":    issuer.Sign(t, claims("sub", "repo:evil/app:ref:refs/heads/main")),
		"another audience": issuer.Sign(t, claims("aud", "other.example")),
		"another issuer":   other.Sign(t, claims()),
		"forged":           other.Sign(t, claims("iss", issuer.URL)),
		"expired":          issuer.Sign(t, claims("exp", time.Now().Add(-time.Second).Unix())),
	} {
		a := r.Do(t, "GET", exchange, "", servertest.Basic(robot, token)...).WantStatus(t, 401)
		if string(a.Content) != string(wrong.Content) {
			t.Errorf("%s: %s", what, a.Content)
		}
	}
	if err := r.Auth.SetFederations(t.Context(), robot, nil); err != nil {
		t.Fatal(err)
	}
	r.Do(t, "GET", manifest, "", servertest.Basic(robot, good)...).Want(t, 401, oci.Unauthorized)
}

// TestRulesReplacedMeanwhile: a robot has logged in, and before it gets a secret somebody replaces its
// rules, by the same ones too. It gets none, since replacing the rules ends the secrets of the old ones.
func TestRulesReplacedMeanwhile(t *testing.T) {
	t.Parallel()
	issuer := identitytest.NewIssuer(t)
	r := closed(t, nil, func(o *servertest.Options) {
		o.Access.Federation = identity.NewVerifier(identity.VerifierOptions{AllowPrivate: true})
	})
	if _, _, err := r.Auth.CreateRobot(t.Context(), "acme", "ci", "", auth.Limits{}, nil); err != nil {
		t.Fatal(err)
	}
	rules := []auth.Federation{{Issuer: issuer.URL, Audience: "purser.example", Claims: map[string]string{"sub": "app"}}}
	token := issuer.Sign(t, map[string]any{"aud": "purser.example", "sub": "app", "exp": time.Now().Add(time.Hour).Unix()})
	for _, others := range [][]auth.Federation{nil, rules} {
		if err := r.Auth.SetFederations(t.Context(), "acme+ci", rules); err != nil {
			t.Fatal(err)
		}
		p, err := r.Auth.Login(t.Context(), "acme+ci", token, "192.0.2.1")
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := r.Auth.ExchangeFederated(t.Context(), p); err != nil {
			t.Errorf("before a change: %v", err)
		}
		if err := r.Auth.SetFederations(t.Context(), "acme+ci", others); err != nil {
			t.Fatal(err)
		}
		if _, _, err := r.Auth.ExchangeFederated(t.Context(), p); oci.CodeOf(err) != oci.Unauthorized {
			t.Errorf("after a change: %v", err)
		}
	}
}

// TestFederatedEnd: a token that was accepted isn't any more once it has ended.
func TestFederatedEnd(t *testing.T) {
	t.Parallel()
	issuer := identitytest.NewIssuer(t)
	r := closed(t, nil, func(o *servertest.Options) {
		o.Access.Federation = identity.NewVerifier(identity.VerifierOptions{AllowPrivate: true})
	})
	if _, _, err := r.Auth.CreateRobot(t.Context(), "acme", "ci", "", auth.Limits{}, nil); err != nil {
		t.Fatal(err)
	}
	rule := auth.Federation{Issuer: issuer.URL, Audience: "purser.example", Claims: map[string]string{"sub": "app"}}
	if err := r.Auth.SetFederations(t.Context(), "acme+ci", []auth.Federation{rule}); err != nil {
		t.Fatal(err)
	}
	token := issuer.Sign(t, map[string]any{"aud": "purser.example", "sub": "app", "exp": time.Now().Add(6 * time.Second).Unix()})
	headers := servertest.Basic("acme+ci", token)
	r.Do(t, "GET", "/auth/session", "", headers...).WantStatus(t, 200)
	servertest.Eventually(t, "the token's end", func() bool {
		return r.Do(t, "GET", "/auth/session", "", headers...).StatusCode == 401
	})
}

// TestSecretsAsBearer: personal tokens and robots' secrets are bearer tokens at both interfaces,
// with their limits.
func TestSecretsAsBearer(t *testing.T) {
	t.Parallel()
	r := closed(t, map[string]auth.Role{"ann": auth.Writer})
	_, personal, err := r.Auth.CreateToken(t.Context(), &auth.Principal{Name: "ann"}, "laptop", auth.Limits{Actions: []auth.Action{auth.ActionPull}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, robot, err := r.Auth.CreateRobot(t.Context(), "acme", "ci", "", auth.Limits{Repositories: []string{"acme/other"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Grant(t, "acme", "acme+ci", auth.Reader)
	for secret, name := range map[string]string{personal: "ann", robot: "acme+ci"} {
		if got := accountOf(t, r, servertest.Bearer(secret)...); got != name {
			t.Errorf("the secret is %q's", got)
		}
		r.Do(t, "GET", "/v2/", "", servertest.Bearer(secret)...).Want(t, 200, "")
		r.Do(t, "GET", "/api/v1/repository", "", servertest.Bearer(secret)...).WantStatus(t, 200)
	}
	r.Do(t, "GET", "/v2/acme/app/manifests/v1", "", servertest.Bearer(personal)...).Want(t, 200, "")
	r.Do(t, "PUT", "/v2/acme/app/manifests/v2", "{}", servertest.Bearer(personal)...).Want(t, 403, oci.Denied)
	r.Do(t, "GET", "/v2/acme/app/manifests/v1", "", servertest.Bearer(robot)...).Want(t, 403, oci.Denied)
	r.Do(t, "GET", "/v2/", "", servertest.Bearer(personal+"x")...).Want(t, 401, oci.Unauthorized)
}
