//go:build all

package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// fails reports an error unless a client failed with a message that contains one of `texts`.
func fails(t *testing.T, what string, err error, texts ...string) {
	t.Helper()
	switch {
	case err == nil:
		t.Errorf("%s: it worked, and shouldn't", what)
	case !slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(strings.ToLower(err.Error()), text) }):
		t.Errorf("%s: the client said %v, want one of %q", what, err, texts)
	}
}

// notLoggedIn is what clients say if the registry answers 401.
var notLoggedIn = []string{"unauthorized", "authentication required", "401", "invalid username/password"}

// TestClientsAreRefused: clients say that they aren't logged in, that the password is wrong, or
// that the account may not push.
func TestClientsAreRefused(t *testing.T) {
	eachAccessClient(t, func(t *testing.T, _ *registry, _, name string, newClient func() accessClient) {
		writer, repo := newClient(), "acme/"+name
		wants(t, "writer logs in", writer.login("writer", accountPassword))
		wants(t, "writer pushes", writer.push(repo, "v1"))

		nobody := newClient()
		fails(t, "a push without credentials", nobody.push(repo, "v2"), notLoggedIn...)
		fails(t, "a pull without credentials", nobody.pull(repo, "v1"), notLoggedIn...)

		wrong := newClient()
		err := wrong.login("writer", "wrong password")
		if wrong.lateLogin {
			wants(t, "logging in without a check", err)
			err = wrong.push(repo, "v2")
		}
		fails(t, "a wrong password", err, notLoggedIn...)

		reader := newClient()
		wants(t, "reader logs in", reader.login("reader", accountPassword))
		wants(t, "reader pulls", reader.pull(repo, "v1"))
		fails(t, "a reader's push", reader.push(repo, "v2"), "denied", "403", "may not do this")

		stranger := newClient()
		wants(t, "stranger logs in", stranger.login("stranger", accountPassword))
		for _, repo := range []string{repo, "acme/unknown"} {
			fails(t, "a stranger's pull of "+repo, stranger.pull(repo, "v1"), "denied", "403", "may not do this")
		}
		fails(t, "a stranger's push", stranger.push(repo, "v2"), "denied", "403", "may not do this")
	})
}

// TestClientsPullWithoutAccount: everybody pulls from a public repository, and nobody but its
// writers pushes.
func TestClientsPullWithoutAccount(t *testing.T) {
	eachAccessClient(t, func(t *testing.T, r *registry, _, name string, newClient func() accessClient) {
		admin, repo := newClient(), "open/"+name
		wants(t, "admin logs in", admin.login("admin", accountPassword))
		wants(t, "admin pushes", admin.push(repo, "v1"))
		publish(t, r, repo)
		nobody := newClient()
		// The registry may use what it knows of the repository for some seconds.
		eventually(t, 30*time.Second, func() error { return nobody.pull(repo, "v1") })
		if nobody.tags != nil {
			if got, err := nobody.tags(repo); err != nil || !slices.Equal(got, []string{"v1"}) {
				t.Errorf("tags of %s without credentials: %q (%v), want v1", repo, got, err)
			}
		}
		fails(t, "a push without credentials", nobody.push(repo, "v2"), notLoggedIn...)
	})
}
