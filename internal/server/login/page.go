package login

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"errors"
	"html/template"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/purser-registry/purser/internal/server"
)

//go:embed page.html
var pageText string

//go:embed page.css
var pageStyle string

var pageTemplate = template.Must(template.New("page").Parse(pageText))

// contentPolicy allows the page's own style and its form, and nothing else.
var contentPolicy = func() string {
	sum := sha256.Sum256([]byte(pageStyle))
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
		"'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
}()

// page is what the page shows.
type page struct {
	Style   template.CSS
	Problem string // "": none
	Account string // who is logged in, "": nobody
	// Form says whether the form is shown, Next where the browser goes afterwards, OIDC the
	// address of the button of the provider, "" for none, and OIDCName the provider's name.
	Form           bool
	Next           string
	Username       string // as somebody has typed it before a log-in that was refused
	OIDC, OIDCName string
}

// showLogin shows who is logged in, or the form.
func (a *API) showLogin(w http.ResponseWriter, r *http.Request) error {
	if err := a.control.CheckBrowser(r); err != nil {
		return err
	}
	return a.write(w, r, http.StatusOK, a.page(r, "", nil))
}

// maxName is how much of a name that was typed the page shows again, in characters.
const maxName = 255

func clip(name string) string {
	if text := []rune(strings.ToValidUTF8(name, "")); len(text) > maxName {
		return string(text[:maxName])
	}
	return strings.ToValidUTF8(name, "")
}

// page returns the page with a problem, which may be "", and with what was typed before it, nil for nothing.
func (a *API) page(r *http.Request, problem string, typed *credentials) page {
	p := page{Style: template.CSS(pageStyle), Problem: problem} //nolint:gosec // it is a constant
	if principal := server.Observed(r.Context()).Principal; principal.Session() != "" && problem == "" {
		p.Account = principal.Name
		return p
	}
	if p.Form = a.control.CheckBrowser(r) == nil; !p.Form {
		return p
	}
	if r.URL.Path == "/auth/login" {
		p.Next = localPath(r.URL.Query().Get("next"), "")
	}
	if typed != nil {
		p.Username, p.Next = clip(typed.Username), localPath(typed.Next, "")
	}
	if a.oidc != nil {
		p.OIDC, p.OIDCName = "/auth/oidc/login", a.oidcName
		if p.Next != "" {
			p.OIDC += "?" + url.Values{"next": {p.Next}}.Encode()
		}
	}
	return p
}

// failPage answers with a page that says what went wrong.
func (a *API) failPage(w http.ResponseWriter, r *http.Request, err error) {
	e := server.Answer(r.Context(), err)
	server.Observed(r.Context()).Err = err
	server.SetRetry(w.Header(), e)
	text := e.Message
	if text == "" {
		text = e.Code.Message()
	}
	var typed *credentials
	if refused, ok := errors.AsType[*refusedLogin](err); ok {
		typed = &refused.typed
	}
	if err := a.write(w, r, e.HTTPStatus(), a.page(r, text, typed)); err != nil {
		a.server.Warn(r.Context(), "writing the log-in page", err)
	}
}

func (a *API) write(w http.ResponseWriter, r *http.Request, status int, p page) error {
	var b bytes.Buffer
	if err := pageTemplate.Execute(&b, p); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(b.Len()))
	w.WriteHeader(status)
	if r.Method == http.MethodHead {
		return nil
	}
	_, err := w.Write(b.Bytes())
	return err
}
