package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	// ServerVariable is the name of the environment variable from which the command line takes
	// the registry's URL. The flag --server has priority over it. If neither is given, it is that of
	// the user's log-in, else DefaultServer.
	ServerVariable = "PURSER_SERVER"
	DefaultServer  = "http://127.0.0.1:5000"
	// maxAnswer limits how many bytes of an answer the client reads into memory.
	maxAnswer = 64 << 20
	// mostOfPage is how many entries of a list the client asks for at once.
	mostOfPage = 100
)

// Client calls the management API of a registry, which may run on another machine. Making a
// Client sends no request.
type Client struct {
	server      *url.URL
	http        *http.Client
	credentials Credentials
}

// NewClient makes a client of the registry at a URL. The client sends no credentials; see
// Client.With.
func NewClient(server *url.URL) *Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DialContext = (&net.Dialer{Timeout: 10 * time.Second}).DialContext
	return &Client{server: server, http: &http.Client{
		Transport: transport,
		// The client doesn't follow redirects, since net/http would turn a redirected POST
		// into a GET.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// ParseServer parses the address of a registry. If the address has no scheme, ParseServer
// chooses http for localhost and loopback addresses, and https for all others, as docker does.
func ParseServer(text string) (*url.URL, error) {
	full := text
	if !strings.Contains(text, "://") {
		host := text
		if h, _, err := net.SplitHostPort(text); err == nil {
			host = h
		}
		full = "https://" + text
		if isLoopback(strings.Trim(host, "[]")) {
			full = "http://" + text
		}
	}
	u, err := url.Parse(full)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%q is not a URL like %s", text, DefaultServer)
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, fmt.Errorf("%q should begin with http:// or https://", u.Redacted())
	case u.Host == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "":
		return nil, fmt.Errorf("%q should be scheme, host and port alone, like %s", u.Redacted(), DefaultServer)
	}
	u.Path = ""
	return u, nil
}

// Path escapes each part, puts a slash before it and joins the results: "repository" and "a/b"
// become "/repository/a%2Fb". The client's methods take such a path, which is relative to
// /api/v1.
func Path(parts ...string) string {
	path := ""
	for _, part := range parts {
		path += "/" + url.PathEscape(part)
	}
	return path
}

// Get sends a GET request and decodes the JSON answer into `out`. `path` is a path below
// /api/v1, made by Path; `query` may be nil.
func (c *Client) Get(ctx context.Context, path string, query url.Values, out any) error {
	return c.Do(ctx, http.MethodGet, path, query, nil, out)
}

// Post sends `in` as JSON and decodes the JSON answer into `out`. If `in` is nil, the request
// has no body. If `out` is nil, the answer's body is ignored.
func (c *Client) Post(ctx context.Context, path string, in, out any) error {
	return c.Do(ctx, http.MethodPost, path, nil, in, out)
}

// Put is like Post, but sends PUT.
func (c *Client) Put(ctx context.Context, path string, in, out any) error {
	return c.Do(ctx, http.MethodPut, path, nil, in, out)
}

// Delete sends a DELETE request without a body, and ignores the answer's body. `query` may be
// nil.
func (c *Client) Delete(ctx context.Context, path string, query url.Values) error {
	return c.Do(ctx, http.MethodDelete, path, query, nil, nil)
}

// Do sends a request with the given HTTP method. If `in` isn't nil, Do sends it as JSON; if
// `out` isn't nil, Do decodes the JSON answer into it.
func (c *Client) Do(ctx context.Context, method, path string, query url.Values, in, out any) error {
	body, err := c.Open(ctx, method, path, query, in)
	if err != nil {
		return err
	}
	defer body.Close() //nolint:errcheck // only read
	if out == nil {
		return nil
	}
	raw, err := io.ReadAll(io.LimitReader(body, maxAnswer))
	if err != nil {
		return fmt.Errorf("reading the answer of %s: %w", c.server.Redacted(), err)
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return fmt.Errorf("%s gave an answer that this program doesn't understand, maybe it is of another version: %w", c.server.Redacted(), err)
	}
	return nil
}

// Open sends a request, with `in` as its JSON body unless `in` is nil. It returns the body of
// the answer, which the caller must read and close. If the answer has an error status or is a
// redirect, Open returns an error. Do holds the whole answer in memory; Open is for answers
// that are too large for that.
func (c *Client) Open(ctx context.Context, method, path string, query url.Values, in any) (io.ReadCloser, error) {
	var content io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return nil, fmt.Errorf("writing the request: %w", err)
		}
		content = bytes.NewReader(b)
	}
	target := strings.TrimSuffix(c.server.String(), "/") + "/api/v1" + path
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, target, content)
	if err != nil {
		return nil, fmt.Errorf("making the request: %w", err)
	}
	req.Header.Set("User-Agent", "purser")
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if err := c.authorize(req); err != nil {
		return nil, err
	}
	res, err := c.http.Do(req)
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	if res.StatusCode < 300 {
		return res.Body, nil
	}
	defer res.Body.Close() //nolint:errcheck // only read
	return nil, c.refused(res)
}

// unreachable returns the error for a request that got no answer. Its text has the cause, and
// says how the user can start a registry or name another one.
func (c *Client) unreachable(ctx context.Context, err error) error {
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return errors.New("interrupted")
	case ctx.Err() != nil: // the caller gave the registry only so much time
		err = context.Cause(ctx)
	}
	if inner, ok := errors.AsType[*url.Error](err); ok {
		err = inner.Err // drops the URL, which may be long
	}
	return &UnreachableError{fmt.Errorf("no registry answers at %s: %w\nStart one with \"purser serve\", or name another with --server URL or %s",
		c.server.Redacted(), err, ServerVariable)}
}

// UnreachableError says that no registry answers.
type UnreachableError struct{ error }

// Unwrap returns the error with its cause.
func (e *UnreachableError) Unwrap() error { return e.error }

// Server returns the registry's URL, which the caller must not change.
func (c *Client) Server() *url.URL { return c.server }

// Name returns the registry's URL for people.
func (c *Client) Name() string { return c.server.Redacted() }

// Error is an error that the client received as the registry's answer. Its fields are members
// of an error answer of the management API.
type Error struct {
	Status int    `json:"status"`
	Detail string `json:"detail"`
	Type   string `json:"error_type"`
	// Details are values that the error is about, by name.
	Details json.RawMessage `json:"details"`
}

// Error returns the registry's text.
func (e *Error) Error() string { return e.Detail }

// refused returns the error for an answer whose status is an error or a redirect: an *Error if
// the answer's body is an error of a Purser registry, else an error that describes the answer.
func (c *Client) refused(res *http.Response) error {
	if location := res.Header.Get("Location"); res.StatusCode < 400 && location != "" {
		return fmt.Errorf("%s sends to %s: name that with --server", c.server.Redacted(), location)
	}
	kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	e := new(Error)
	raw, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	isJSON := kind == "application/json" || kind == "application/problem+json"
	if err != nil || !isJSON || json.Unmarshal(raw, e) != nil || e.Detail == "" {
		return fmt.Errorf("%s answers %s, and not as a Purser registry does: is it one, and of this version?", c.server.Redacted(), res.Status)
	}
	e.Status = res.StatusCode
	if e.Status == http.StatusUnauthorized {
		e.Detail += c.logIn()
	}
	return e
}

// Collect fetches a list page by page until it has `limit` items (0: all items) or there are no
// more pages. It returns the items, and whether the registry has more of them. For each page,
// Collect calls `fetch` with the cursor at which the page begins ("" for the first page) and
// the number of items that the page may have at most. `fetch` returns the items of the page and
// the cursor of the next page, "" if there is none.
func Collect[T any](limit int, fetch func(cursor string, n int) (page []T, next string, err error)) (list []T, more bool, err error) {
	list = []T{}
	for cursor := ""; ; {
		n := mostOfPage
		if limit > 0 {
			n = min(mostOfPage, limit-len(list))
		}
		page, next, err := fetch(cursor, n)
		if err != nil {
			return nil, false, err
		}
		list = append(list, page...)
		if limit > 0 && len(list) > limit { // the route has pages of its own size
			return list[:limit], true, nil
		}
		if next == "" || limit > 0 && len(list) >= limit {
			return list, next != "", nil
		}
		cursor = next
	}
}

// All fetches a whole list, page by page. `member` is the name of the list in each answer.
func All[T any](ctx context.Context, c *Client, path, member string) ([]T, error) {
	list, _, err := Collect(0, func(cursor string, n int) (items []T, next string, err error) {
		next, err = c.page(ctx, path, member, cursor, n, &items)
		return items, next, err
	})
	return list, err
}

// AllOf is All for a list whose entries have names: an object in each answer.
func AllOf[T any](ctx context.Context, c *Client, path, member string) (map[string]T, error) {
	all := make(map[string]T)
	for cursor := ""; ; {
		next, err := c.page(ctx, path, member, cursor, mostOfPage, &all) // it adds to what is there
		if err != nil || next == "" {
			return all, err
		}
		cursor = next
	}
}

// page fetches a page of a list into `items`, and returns where the next one begins.
func (c *Client) page(ctx context.Context, path, member, cursor string, n int, items any) (next string, err error) {
	query := url.Values{"limit": {strconv.Itoa(n)}}
	if cursor != "" {
		query.Set("next_page", cursor)
	}
	var answer map[string]json.RawMessage
	if err := c.Get(ctx, path, query, &answer); err != nil {
		return "", err
	}
	err = json.Unmarshal(answer[member], items)
	if text, ok := answer["next_page"]; ok && err == nil {
		err = json.Unmarshal(text, &next)
	}
	if err != nil {
		err = fmt.Errorf("%s gave an answer that this program doesn't understand, maybe it is of another version: %w", c.server.Redacted(), err)
	}
	return next, err
}
