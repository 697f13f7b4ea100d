// Package login serves what clients use to log in: registry tokens under /token, in Docker's
// protocol, sessions of browsers under /auth/, and the exchange of pipelines' tokens under
// /oauth2/federation/robot/token.
//
// A client that sends a request without a token gets 401 with a challenge, which names /token
// and the scope that it needs. It asks there with its credentials, and gets a token with what
// its account may do of that. An anonymous token allows pulls from public repositories, if the
// registry allows those.
//
// A browser sends a name and a password to /auth/login, or goes by /auth/oidc/login to the
// OpenID Connect provider and comes back to /auth/oidc/callback. Both end in a session, whose
// cookie the browser then sends. The pages are plain HTML, need no script, and allow none.
//
// No error says whether an account exists, and no answer may be cached.
//
// # Why nobody gets another's session
//
//   - Only a person's password or the provider's answer begins a session. A personal token or a
//     robot's secret doesn't, since a session has all rights of the account, and a token may
//     have fewer.
//   - The session has a new secret, and the one that the browser had before ends. So nobody can
//     give a browser a cookie that becomes somebody's session.
//   - Pages of other sites can't send a log-in form, since the server refuses POST requests from
//     there. They can't let a browser finish a log-in of theirs at the provider either: what
//     ties the provider's answer to the browser (state, nonce and the verifier of PKCE) is in a
//     cookie that the browser got when it began (type attempts).
//   - After a log-in the browser goes to a path of this registry only (localPath).
package login

import (
	"cmp"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/auth/identity"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server"
)

// maxForm limits the body of a request, in bytes.
const maxForm = 64 << 10

// Options configure an API.
type Options struct {
	Server *server.Server // required, with access control
	// OIDC is where people log in besides here. Nil: nowhere.
	OIDC *identity.Provider
	// OIDCName is the provider's name on the log-in page. Default "OpenID Connect".
	OIDCName string
	// Home is the path to which a browser goes after a log-in that names none. Default
	// /auth/login, which says who is logged in.
	Home string
	// RefreshAge is how long a refresh token is valid. Default 90 days.
	RefreshAge time.Duration
	Log        *slog.Logger // default slog.Default()
}

// API serves the endpoints.
type API struct {
	server   *server.Server
	control  *auth.Control
	oidc     *identity.Provider
	oidcName string
	home     string
	attempts *attempts
	refresh  time.Duration
	log      *slog.Logger
}

// New makes the API.
func New(o Options) (*API, error) {
	if o.Server == nil || o.Server.Auth() == nil {
		return nil, errors.New("login: a server with access control is required")
	}
	control := o.Server.Auth()
	return &API{
		server: o.Server, control: control, oidc: o.OIDC, oidcName: cmp.Or(o.OIDCName, "OpenID Connect"),
		home: cmp.Or(o.Home, "/auth/login"), attempts: &attempts{secret: control.BrowserSecret},
		refresh: cmp.Or(o.RefreshAge, 90*24*time.Hour), log: cmp.Or(o.Log, slog.Default()),
	}, nil
}

// Mounts returns how a server mounts the endpoints.
func (a *API) Mounts() []server.Mount {
	header := http.Header{"Cache-Control": {"no-store"}}
	pages := header.Clone()
	pages.Set("Content-Security-Policy", contentPolicy)
	pages.Set("X-Frame-Options", "DENY")
	// Without a referrer, browsers would send "Origin: null" with the form.
	pages.Set("Referrer-Policy", "same-origin")
	return []server.Mount{
		{Prefix: "/token", Handler: http.HandlerFunc(a.serveToken), MarshalError: marshalError, Header: header,
			Challenge: server.Challenge.Basic, ReadsAreLogged: true, Browsers: true},
		{Prefix: federationPath, Handler: http.HandlerFunc(a.serveFederation), MarshalError: marshalError, Header: header,
			Challenge: server.Challenge.Basic, ReadsAreLogged: true, Browsers: true},
		{Prefix: "/auth/", Handler: http.HandlerFunc(a.serveBrowser), MarshalError: marshalError, Header: pages, ReadsAreLogged: true, Browsers: true},
	}
}

func marshalError(e *oci.Error) []byte { return oci.MarshalErrors(e) }

// methodError returns the error for a method that a path doesn't have, and tells the client
// those that it has.
func methodError(w http.ResponseWriter, r *http.Request, allow string) error {
	w.Header().Set("Allow", allow)
	return oci.Errorf(oci.Unsupported, "%s is not possible at %s, but %s", r.Method, r.URL.Path, allow)
}
