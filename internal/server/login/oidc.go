package login

import (
	"errors"
	"net/http"
	"strings"

	"github.com/purser-registry/purser/internal/auth/identity"
	"github.com/purser-registry/purser/internal/auth/password"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server"
)

// beginOIDC sends a browser to the provider.
func (a *API) beginOIDC(w http.ResponseWriter, r *http.Request) error {
	if a.oidc == nil {
		return server.NothingAt(r)
	}
	secure, err := a.secure(r)
	if err != nil {
		return err
	}
	// A provider accepts only the URLs that it knows, so this is the external URL, even if the
	// browser has used another name. It then comes back without the cookie, is told to log in
	// again, and does so under the right name.
	redirect := a.server.PublicBase(r.Context()) + "/auth/oidc/callback"
	attempt, err := a.oidc.Begin(r.Context(), redirect)
	if err != nil {
		return providerError(err)
	}
	err = a.attempts.keep(r.Context(), w, secure, kept{
		State: attempt.State, Nonce: attempt.Nonce, Verifier: attempt.Verifier,
		Next: localPath(r.URL.Query().Get("next"), a.home), Redirect: redirect,
	})
	if err != nil {
		return err
	}
	w.Header().Set("Location", attempt.URL)
	w.WriteHeader(http.StatusSeeOther)
	return nil
}

// finishOIDC begins a session for the person whom the provider has identified.
func (a *API) finishOIDC(w http.ResponseWriter, r *http.Request) error {
	if a.oidc == nil {
		return server.NothingAt(r)
	}
	secure, err := a.secure(r)
	if err != nil {
		return err
	}
	attempt, ok, err := a.attempts.take(w, r, secure)
	if err != nil {
		return err
	}
	if !ok {
		return oci.Errorf(oci.Denied, "this browser has begun no log-in in the last 10 minutes, or has begun it under another name of the registry: log in again")
	}
	who, err := a.oidc.Finish(r.Context(), attempt.attempt(), attempt.Redirect, r.URL.Query())
	if err != nil {
		err = providerError(err)
		a.control.RecordRefusal(r.Context(), who, err)
		return err
	}
	account, err := a.control.Provision(r.Context(), who)
	if err == nil && account.Disabled {
		err = oci.Errorf(oci.Denied, "the account %s is disabled: ask the registry's administrator", account.Name)
	}
	if err != nil {
		a.control.RecordRefusal(r.Context(), who, err)
		return err
	}
	if err := a.control.OpenSession(w, r, account.Name, "oidc", password.Proof{}); err != nil {
		return err
	}
	w.Header().Set("Location", localPath(attempt.Next, a.home))
	w.WriteHeader(http.StatusSeeOther)
	return nil
}

// secure says whether cookies of the browser get the attribute Secure.
func (a *API) secure(r *http.Request) (bool, error) {
	if err := a.control.CheckBrowser(r); err != nil {
		return false, err
	}
	return a.control.Sessions().Secure(r)
}

// providerError returns the error for the person: why the provider's answer is refused, or that
// the provider can't be asked. Details of the latter are only logged.
func providerError(err error) error {
	if errors.Is(err, identity.ErrRefused) {
		return oci.Errorf(oci.Denied, "%s", strings.TrimPrefix(err.Error(), identity.ErrRefused.Error()+": ")).WithCause(err)
	}
	return oci.Errorf(oci.Unavailable, "the OpenID Connect provider can't be used now: try again, or ask the registry's administrator").WithCause(err)
}
