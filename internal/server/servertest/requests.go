package servertest

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/oci"
)

// Answer is a response whose body was read.
type Answer struct {
	*http.Response
	Content []byte
}

// Client sends the requests of tests. It follows no redirects.
var Client = &http.Client{
	Timeout:       time.Minute,
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	Transport:     &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 64},
}

// Do sends a request and returns the answer. `headers` has the name and the value of each
// header, in turn.
func (r *Registry) Do(t testing.TB, method, path, body string, headers ...string) Answer {
	t.Helper()
	a, err := r.Try(t.Context(), method, path, strings.NewReader(body), headers...)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	return a
}

func (r *Registry) Try(ctx context.Context, method, path string, body io.Reader, headers ...string) (Answer, error) {
	req, err := http.NewRequestWithContext(ctx, method, r.URL+path, body)
	if err != nil {
		return Answer{}, err
	}
	for i := 0; i < len(r.credentials) && !slices.Contains(headers, "Authorization"); i += 2 {
		req.Header.Add(r.credentials[i], r.credentials[i+1])
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	res, err := Client.Do(req)
	if err != nil {
		return Answer{}, err
	}
	defer res.Body.Close() //nolint:errcheck // read to its end
	b, err := io.ReadAll(res.Body)
	return Answer{res, b}, err
}

// Want checks the answer's status and, unless `code` is "", its error code. `headers` has the
// name of a header and its wanted value, in turn. The value "*" means any value, "" means that
// the header must be absent.
func (a Answer) Want(t testing.TB, status int, code oci.Code, headers ...string) Answer {
	t.Helper()
	what := a.Request.Method + " " + a.Request.URL.RequestURI()
	if a.StatusCode != status {
		t.Fatalf("%s: %d %s, want %d %s", what, a.StatusCode, a.Content, status, code)
	}
	if got := a.Header.Get("Docker-Distribution-Api-Version"); got != "registry/2.0" {
		t.Errorf("%s: Docker-Distribution-Api-Version %q", what, got)
	}
	if a.Header.Get("X-Request-Id") == "" {
		t.Errorf("%s: no X-Request-Id", what)
	}
	if code != "" && a.Request.Method != http.MethodHead {
		if got := a.Code(t); got != code {
			t.Errorf("%s: code %s, want %s: %s", what, got, code, a.Content)
		}
	}
	for i := 0; i < len(headers); i += 2 {
		got := a.Header.Get(headers[i])
		if want := headers[i+1]; got != want && (want != "*" || got == "") {
			t.Errorf("%s: %s is %q, want %q", what, headers[i], got, want)
		}
	}
	return a
}

var codeForm = regexp.MustCompile(`^[A-Z_]+$`)

// Code checks that the body is an error in the format of the OCI Distribution Specification
// ("Error Codes"), and returns the error's code.
func (a Answer) Code(t testing.TB) oci.Code {
	t.Helper()
	if ct := a.Header.Get("Content-Type"); ct != "application/json" {
		t.Errorf("an error of type %q: %s", ct, a.Content)
	}
	var body struct {
		Errors []struct {
			Code    string
			Message string
			Detail  json.RawMessage
		}
	}
	if err := json.Unmarshal(a.Content, &body); err != nil || len(body.Errors) == 0 {
		t.Fatalf("not an error body: %q (%v)", a.Content, err)
	}
	if !codeForm.MatchString(body.Errors[0].Code) || body.Errors[0].Message == "" {
		t.Errorf("error %s", a.Content)
	}
	return oci.Code(body.Errors[0].Code)
}

// Text checks the body.
func (a Answer) Text(t testing.TB, want string) {
	t.Helper()
	if string(a.Content) != want {
		t.Errorf("%s %s: body of %d bytes %.200q, want %d bytes %.200q", a.Request.Method, a.Request.URL.RequestURI(),
			len(a.Content), a.Content, len(want), want)
	}
}

// WantStatus checks the status alone.
func (a Answer) WantStatus(t testing.TB, status int) Answer {
	t.Helper()
	if a.StatusCode != status {
		t.Fatalf("%s %s: %d %s, want %d", a.Request.Method, a.Request.URL.RequestURI(), a.StatusCode, a.Content, status)
	}
	return a
}

// Refused checks that the answer is an error of the management API with the given status and
// kind, and that its text matches the regular expression `text`.
func (a Answer) Refused(t testing.TB, status int, kind, text string) Answer {
	t.Helper()
	what := a.Request.Method + " " + a.Request.URL.RequestURI()
	if a.StatusCode != status {
		t.Fatalf("%s: %d %s, want %d", what, a.StatusCode, a.Content, status)
	}
	if ct := a.Header.Get("Content-Type"); ct != "application/json" {
		t.Errorf("%s: an error of type %q", what, ct)
	}
	if a.Header.Get("X-Request-Id") == "" {
		t.Errorf("%s: no X-Request-Id", what)
	}
	if a.Request.Method == http.MethodHead {
		return a
	}
	var e struct {
		Detail       string
		ErrorMessage string `json:"error_message"`
		ErrorType    string `json:"error_type"`
		Title, Type  string
		Status       int
	}
	if err := json.Unmarshal(a.Content, &e); err != nil {
		t.Fatalf("%s: not an error: %q", what, a.Content)
	}
	if e.Status != status || e.ErrorType != kind || e.Title != kind || e.Type != "/api/v1/error/"+kind || e.ErrorMessage != e.Detail {
		t.Errorf("%s: %s, want the kind %s", what, a.Content, kind)
	}
	if !regexp.MustCompile(text).MatchString(e.Detail) {
		t.Errorf("%s: %q, want a text like %q", what, e.Detail, text)
	}
	return a
}

// Into checks that the answer has the given status, and decodes its JSON body into `v`.
func (a Answer) Into(t testing.TB, status int, v any) Answer {
	t.Helper()
	if a.StatusCode != status {
		t.Fatalf("%s %s: %d %s, want %d", a.Request.Method, a.Request.URL.RequestURI(), a.StatusCode, a.Content, status)
	}
	if err := json.Unmarshal(a.Content, v); err != nil {
		t.Fatalf("%s %s: %q: %v", a.Request.Method, a.Request.URL.RequestURI(), a.Content, err)
	}
	return a
}

var linkForm = regexp.MustCompile(`^<(/v2/[^>]+)>; rel="next"$`)

// Next returns the URL of the next page of a listing from the answer's Link header, or "" if
// the answer is the last page.
func (a Answer) Next(t *testing.T) string {
	t.Helper()
	link := a.Header.Get("Link")
	if link == "" {
		return ""
	}
	m := linkForm.FindStringSubmatch(link)
	if m == nil {
		t.Fatalf("Link %q", link)
	}
	return m[1]
}

// Manage sends a request to the management API. `path` is the path below /api/v1. If there is a
// body, Manage sets its Content-Type to JSON unless `headers` has a Content-Type.
func (r *Registry) Manage(t testing.TB, method, path, body string, headers ...string) Answer {
	t.Helper()
	if body != "" && !slices.Contains(headers, "Content-Type") {
		headers = append(headers, "Content-Type", "application/json")
	}
	return r.Do(t, method, "/api/v1"+path, body, headers...)
}
