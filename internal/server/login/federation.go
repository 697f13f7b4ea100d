package login

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/server"
)

// federationPath is where a pipeline exchanges its own token. Quay has the same.
const federationPath = "/oauth2/federation/robot/token"

// serveFederation answers GET and POST of federationPath.
func (a *API) serveFederation(w http.ResponseWriter, r *http.Request) {
	if err := a.exchange(w, r); err != nil {
		a.server.Fail(w, r, err)
	}
}

// exchange gives the robot that has sent a pipeline's token as its password a secret that lasts
// for a while. Pipelines whose tokens end sooner than their pushes need it.
func (a *API) exchange(w http.ResponseWriter, r *http.Request) error {
	if r.URL.Path != federationPath {
		return server.NothingAt(r)
	}
	o := server.Observed(r.Context())
	o.Route = federationPath
	switch r.Method {
	case http.MethodGet, http.MethodPost:
		o.Method = r.Method
	default:
		return methodError(w, r, "GET, POST")
	}
	p, err := a.server.Principal(r.Context(), auth.LoggedIn)
	if err != nil {
		return err
	}
	secret, expires, err := a.control.ExchangeFederated(r.Context(), p)
	if err != nil {
		return err
	}
	return writeJSON(w, struct {
		Token     string    `json:"token"`
		ExpiresAt time.Time `json:"expires_at"`
	}{secret, expires.UTC()})
}

func writeJSON(w http.ResponseWriter, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	_, err = w.Write(body)
	return err
}
