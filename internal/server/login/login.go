// Package login serves what clients use to log in: registry tokens under /token, in Docker's
// protocol.
//
// A client that sends a request without a token gets 401 with a challenge, which names this
// endpoint and the scope that it needs. It asks here with its credentials, and gets a token
// with what its account may do of that. An anonymous token allows pulls from public
// repositories, if the registry allows those.
//
// No error says whether an account exists, and no answer may be cached.
package login

import (
	"cmp"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server"
)

// maxForm limits the body of a request, in bytes.
const maxForm = 64 << 10

// Options configure an API.
type Options struct {
	Server *server.Server // required, with access control
	// RefreshAge is how long a refresh token is valid. Default 90 days.
	RefreshAge time.Duration
	Log        *slog.Logger // default slog.Default()
}

// API serves the endpoints.
type API struct {
	server  *server.Server
	control *auth.Control
	refresh time.Duration
	log     *slog.Logger
}

// New makes the API.
func New(o Options) (*API, error) {
	if o.Server == nil || o.Server.Auth() == nil {
		return nil, errors.New("login: a server with access control is required")
	}
	return &API{server: o.Server, control: o.Server.Auth(), refresh: cmp.Or(o.RefreshAge, 90*24*time.Hour), log: cmp.Or(o.Log, slog.Default())}, nil
}

// Mounts returns how a server mounts the endpoints.
func (a *API) Mounts() []server.Mount {
	header := http.Header{"Cache-Control": {"no-store"}}
	return []server.Mount{
		{Prefix: "/token", Handler: http.HandlerFunc(a.serveToken), MarshalError: marshalError, Header: header,
			Challenge: server.Challenge.Basic, ReadsAreLogged: true},
	}
}

func marshalError(e *oci.Error) []byte { return oci.MarshalErrors(e) }
