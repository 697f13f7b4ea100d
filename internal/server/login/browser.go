package login

import (
	"encoding/json"
	"net/http"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server"
)

// browserRoute is a path for browsers. A nil handler is a method that the path doesn't have.
type browserRoute struct {
	get, post func(w http.ResponseWriter, r *http.Request) error
	allow     string
}

// serveBrowser answers the requests below /auth/. Errors are pages, except for clients that send
// or ask for JSON.
func (a *API) serveBrowser(w http.ResponseWriter, r *http.Request) {
	routes := map[string]browserRoute{
		"/auth/login":         {a.showLogin, a.login, "GET, HEAD, POST"},
		"/auth/logout":        {nil, a.logout, "POST"},
		"/auth/session":       {a.showSession, nil, "GET, HEAD"},
		"/auth/oidc/login":    {a.beginOIDC, nil, "GET"},
		"/auth/oidc/callback": {a.finishOIDC, nil, "GET"},
	}
	route, ok := routes[r.URL.Path]
	if !ok {
		a.server.Fail(w, r, server.NothingAt(r))
		return
	}
	o := server.Observed(r.Context())
	o.Route = r.URL.Path
	handler := route.get
	switch r.Method {
	case http.MethodGet:
	case http.MethodHead:
		if r.URL.Path != "/auth/login" && r.URL.Path != "/auth/session" {
			handler = nil
		}
	case http.MethodPost:
		handler = route.post
	default:
		handler = nil
	}
	if handler == nil {
		a.server.Fail(w, r, methodError(w, r, route.allow))
		return
	}
	o.Method = r.Method
	err := server.CheckRawQuery(r.URL.RawQuery)
	if err == nil {
		err = handler(w, r)
	}
	switch {
	case err == nil:
	case r.URL.Path == "/auth/session" || contentType(r) == jsonType:
		a.server.Fail(w, r, err)
	default:
		a.failPage(w, r, err)
	}
}

// credentials are what a browser sends to log in.
type credentials struct {
	Username string `json:"username"`
	Password string `json:"password"`
	Next     string `json:"next"`
}

// login begins a session for a name and a password, which come as a form or as JSON.
func (a *API) login(w http.ResponseWriter, r *http.Request) error {
	if err := a.control.CheckBrowser(r); err != nil {
		return err
	}
	var c credentials
	if contentType(r) == jsonType {
		body, err := a.body(w, r)
		if err != nil {
			return err
		}
		if err := json.Unmarshal(body, &c); err != nil {
			return server.Refusal(http.StatusBadRequest, "the body should be a JSON object with username and password")
		}
	} else {
		form, err := a.form(w, r)
		if err != nil {
			return err
		}
		c = credentials{form.Get("username"), form.Get("password"), form.Get("next")}
	}
	account, err := a.open(w, r, c)
	if err != nil {
		return &refusedLogin{err, c}
	}
	next := localPath(c.Next, a.home)
	if contentType(r) == jsonType {
		return writeJSON(w, map[string]string{"account": account, "next": next})
	}
	w.Header().Set("Location", next)
	w.WriteHeader(http.StatusSeeOther)
	return nil
}

// open begins a session for credentials, and returns the name of its account.
func (a *API) open(w http.ResponseWriter, r *http.Request, c credentials) (account string, err error) {
	p, err := a.control.Login(r.Context(), c.Username, c.Password, server.ClientAddress(r.RemoteAddr))
	if err != nil {
		return "", err
	}
	if !p.MayRefresh() {
		return "", oci.Errorf(oci.Denied, "browsers log in with the password of a person's account, not with a token or a robot's secret")
	}
	return p.Name, a.control.OpenSession(w, r, p.Name, "password", p.Proof())
}

// refusedLogin is an error of a log-in with what was typed, so that the page can keep it.
type refusedLogin struct {
	error
	typed credentials
}

// Unwrap returns the error.
func (e *refusedLogin) Unwrap() error { return e.error }

// logout ends the browser's session. It answers a form with a redirection, and other clients
// with 204.
func (a *API) logout(w http.ResponseWriter, r *http.Request) error {
	if err := a.control.CloseSession(w, r); err != nil {
		return err
	}
	if contentType(r) != formType {
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	w.Header().Set("Location", "/auth/login")
	w.WriteHeader(http.StatusSeeOther)
	return nil
}

// sessionAnswer says who is logged in, and how a browser may log in.
type sessionAnswer struct {
	Account *sessionAccount `json:"account"` // null: nobody is logged in
	// Password and OIDC say how a browser may log in. If it may not, Refused says why.
	Password bool   `json:"password"`
	OIDC     bool   `json:"oidc"`
	OIDCName string `json:"oidc_name,omitempty"`
	Refused  string `json:"refused,omitempty"`
}

type sessionAccount struct {
	Name      string `json:"name"`
	Robot     bool   `json:"robot"`
	Superuser bool   `json:"superuser"`
	Session   string `json:"session,omitempty"` // the id of the browser's session
}

func (a *API) showSession(w http.ResponseWriter, r *http.Request) error {
	p, err := a.server.Principal(r.Context(), auth.Anyone)
	if err != nil {
		return err
	}
	var out sessionAnswer
	if p.LoggedIn() {
		out.Account = &sessionAccount{Name: p.Name, Robot: p.Robot, Superuser: p.Superuser, Session: p.Session()}
	}
	if err := a.control.CheckBrowser(r); err != nil {
		out.Refused = server.Answer(r.Context(), err).Message
	} else {
		out.Password, out.OIDC = true, a.oidc != nil
	}
	if out.OIDC {
		out.OIDCName = a.oidcName
	}
	return writeJSON(w, out)
}
