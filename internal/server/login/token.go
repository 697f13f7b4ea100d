package login

import (
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/auth/token"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server"
)

// serveToken answers GET and POST of /token.
func (a *API) serveToken(w http.ResponseWriter, r *http.Request) {
	if err := a.answerToken(w, r); err != nil {
		a.server.Fail(w, r, err)
	}
}

// request is what a client asks for.
type request struct {
	principal *auth.Principal
	scopes    []string
	client    string // the client's name for itself
	offline   bool   // the client wants a refresh token
	refresh   string // the refresh token with which the client has authenticated
}

func (a *API) answerToken(w http.ResponseWriter, r *http.Request) error {
	if r.URL.Path != "/token" {
		return server.NothingAt(r)
	}
	o := server.Observed(r.Context())
	o.Route = "/token"
	var q request
	var err error
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		o.Method = r.Method
		q, err = a.get(r)
	case http.MethodPost:
		o.Method = r.Method
		q, err = a.post(w, r)
	default:
		return methodError(w, r, "GET, HEAD, POST")
	}
	if err != nil {
		return err
	}
	asked, err := token.ParseScopes(q.scopes)
	if err != nil {
		return oci.Errorf(oci.Unsupported, "scope: %v", err).WithStatus(http.StatusBadRequest)
	}
	return a.issue(w, r, q, asked)
}

// get reads a request with Basic authentication, or without credentials.
func (a *API) get(r *http.Request) (q request, err error) {
	if err := server.CheckRawQuery(r.URL.RawQuery); err != nil {
		return q, err
	}
	query := r.URL.Query()
	q = request{scopes: query["scope"], client: query.Get("client_id"), offline: query.Get("offline_token") == "true"}
	// Without credentials, lists may be seen if anonymous pulls are allowed.
	q.principal, err = a.server.Principal(r.Context(), auth.Anyone)
	if err == nil && !q.principal.LoggedIn() {
		q.principal, err = a.server.Principal(r.Context(), auth.List)
	}
	return q, err
}

// post reads a request in the form of OAuth 2.0, with a password or a refresh token.
func (a *API) post(w http.ResponseWriter, r *http.Request) (q request, err error) {
	form, err := a.form(w, r)
	if err != nil {
		return q, err
	}
	q = request{client: form.Get("client_id"), offline: form.Get("access_type") == "offline", scopes: form["scope"]}
	switch form.Get("grant_type") {
	case "password":
		q.principal, err = a.control.Login(r.Context(), form.Get("username"), form.Get("password"), server.ClientAddress(r.RemoteAddr))
	case "refresh_token":
		q.refresh = form.Get("refresh_token")
		q.principal, err = a.control.RefreshPrincipal(r.Context(), q.refresh)
	default:
		err = server.Refusal(http.StatusBadRequest, "grant_type is %.40q and should be password or refresh_token", form.Get("grant_type"))
	}
	return q, err
}

// form reads a body of the type application/x-www-form-urlencoded.
func (a *API) form(w http.ResponseWriter, r *http.Request) (url.Values, error) {
	if contentType(r) != formType {
		return nil, server.Refusal(http.StatusUnsupportedMediaType, "the Content-Type should be %s", formType)
	}
	body, err := a.body(w, r)
	if err != nil {
		return nil, err
	}
	form, err := url.ParseQuery(string(body))
	if err != nil {
		return nil, server.Refusal(http.StatusBadRequest, "the form can't be read")
	}
	return form, nil
}

const formType, jsonType = "application/x-www-form-urlencoded", "application/json"

// contentType returns the type of a request's body, without parameters.
func contentType(r *http.Request) string {
	kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	return strings.ToLower(strings.TrimSpace(kind))
}

// body reads a request's body.
func (a *API) body(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	in := a.server.Body(w, r)
	body := in.Hold(maxForm+1, 1)
	if err := in.LostError(); err != nil {
		return nil, err
	}
	if len(body) > maxForm {
		return nil, server.Refusal(http.StatusRequestEntityTooLarge, "the body has more than %d bytes", maxForm)
	}
	return body, nil
}

// answer is the body of an answer with a token. Clients read either token or access_token.
type answer struct {
	Token        string    `json:"token"`
	AccessToken  string    `json:"access_token"`
	ExpiresIn    int       `json:"expires_in"` // seconds
	IssuedAt     time.Time `json:"issued_at"`
	Scope        string    `json:"scope,omitempty"` // what the token allows, which may be less than was asked for
	RefreshToken string    `json:"refresh_token,omitempty"`
}

func (a *API) issue(w http.ResponseWriter, r *http.Request, q request, asked []token.Access) error {
	now := time.Now()
	raw, granted, expires, err := a.control.IssueToken(r.Context(), q.principal, asked)
	if errors.Is(err, token.ErrTooLarge) {
		return server.Refusal(http.StatusBadRequest, "%v", err)
	}
	if err != nil {
		return err
	}
	out := answer{Token: raw, AccessToken: raw, ExpiresIn: int(expires.Sub(now).Seconds()), IssuedAt: now.UTC(), RefreshToken: q.refresh}
	if q.offline && q.refresh == "" && q.principal.MayRefresh() {
		until := now.Add(a.refresh)
		out.RefreshToken, err = a.control.CreateRefreshToken(r.Context(), q.principal, title(q.client), until)
		if err != nil {
			return err
		}
	}
	var scopes []string
	for _, s := range granted {
		scopes = append(scopes, s.Type+":"+s.Name+":"+strings.Join(s.Actions, ","))
	}
	out.Scope = strings.Join(slices.Sorted(slices.Values(scopes)), " ")
	return writeJSON(w, out)
}

// title returns the title of a refresh token: the beginning of the client's name for itself,
// without characters that can't be shown.
func title(client string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsGraphic(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(client[:min(len(client), 100)], ""))
}
