package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
)

// answering starts a test server that answers requests with `handler`, and returns a client of
// this server.
func answering(t *testing.T, handler http.HandlerFunc) *Client {
	t.Helper()
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	u, err := ParseServer(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	return NewClient(u)
}

func TestParseServer(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"localhost:5000":           "http://localhost:5000",
		"127.0.0.9":                "http://127.0.0.9",
		"[::1]:5000":               "http://[::1]:5000",
		"registry.example":         "https://registry.example",
		"https://registry.example": "https://registry.example",
		"http://registry:80/":      "http://registry:80",
		"ftp://registry":           "",
		"http://registry/v2":       "",
		"http://registry?x=1":      "",
		"http://":                  "",
		"http://a b":               "",
	} {
		u, err := ParseServer(text)
		if got := fmt.Sprint(u); (err == nil) != (want != "") || err == nil && got != want {
			t.Errorf("%q is %s (%v), want %q", text, got, err, want)
		}
	}
}

// TestRequests: a caller passes names with slashes, spaces and characters such as ? and # to
// the client's methods. The server must receive each name as one escaped part of the path, and
// the body of a POST as JSON.
func TestRequests(t *testing.T) {
	t.Parallel()
	type seen struct{ Method, URI, Type, Body string }
	c := answering(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_ = json.NewEncoder(w).Encode(seen{r.Method, r.RequestURI, r.Header.Get("Content-Type"), string(body)})
	})
	var got seen
	if err := c.Get(t.Context(), Path("repository", "a/b c", "tag", "?x#%"), url.Values{"q": {"a&b"}}, &got); err != nil {
		t.Fatal(err)
	}
	if want := (seen{Method: "GET", URI: "/api/v1/repository/a%2Fb%20c/tag/%3Fx%23%25?q=a%26b"}); got != want {
		t.Errorf("the server sees %+v, want %+v", got, want)
	}
	if err := c.Post(t.Context(), Path("x"), map[string]int{"n": 1}, &got); err != nil {
		t.Fatal(err)
	}
	if want := (seen{"POST", "/api/v1/x", "application/json", `{"n":1}`}); got != want {
		t.Errorf("the server sees %+v, want %+v", got, want)
	}
}

func TestErrors(t *testing.T) {
	t.Parallel()
	answer := func(status int, kind, body string) *Client {
		return answering(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", kind)
			if status/100 == 3 {
				w.Header().Set("Location", "https://elsewhere/")
			}
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		})
	}
	problem := `{"status": 999, "detail": "no such tag", "error_type": "not_found", "details": {"tag": "v1"}}`
	err := answer(404, "application/problem+json; charset=utf-8", problem).Get(t.Context(), "/x", nil, nil)
	if e, ok := errors.AsType[*Error](err); !ok || e.Status != 404 || e.Detail != "no such tag" || e.Type != "not_found" || string(e.Details) != `{"tag": "v1"}` {
		t.Errorf("a problem is %#v", err)
	}
	var out struct{ N int }
	for what, test := range map[string]struct {
		client *Client
		want   string
	}{
		"a proxy's page":          {answer(502, "text/html", "<html>"), "not as a Purser registry does"},
		"JSON of something else":  {answer(500, "application/json", `{"errors": []}`), "not as a Purser registry does"},
		"a redirect":              {answer(302, "text/html", ""), "name that with --server"},
		"a page with status 200":  {answer(200, "text/html", "<html>"), "doesn't understand"},
		"an answer of other type": {answer(200, "application/json", `{"N": "x"}`), "doesn't understand"},
	} {
		if err := test.client.Get(t.Context(), "/x", nil, &out); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", what, err, test.want)
		}
	}
}

func TestUnreachable(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.NotFoundHandler())
	u, err := ParseServer(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	s.Close() // nobody listens there now
	u.User = url.UserPassword("joe", "secret")
	c := NewClient(u)
	err = c.Get(t.Context(), "/x", nil, nil)
	if _, ok := errors.AsType[*UnreachableError](err); !ok || !strings.Contains(err.Error(), ServerVariable) || strings.Contains(err.Error(), "secret") {
		t.Errorf("without a server: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Get(ctx, "/x", nil, nil); err == nil || err.Error() != "interrupted" {
		t.Errorf("with a cancelled context: %v", err)
	}
	ctx, cancel = context.WithTimeoutCause(t.Context(), 0, errors.New("no answer within 0s"))
	defer cancel()
	err = c.Get(ctx, "/x", nil, nil)
	if _, ok := errors.AsType[*UnreachableError](err); !ok || !strings.Contains(err.Error(), "no answer within 0s") {
		t.Errorf("after the time that the caller gave: %v", err)
	}
}

func TestCollect(t *testing.T) {
	t.Parallel()
	const all = 230
	var sizes []int
	fetch := func(cursor string, n int) (page []int, next string, err error) {
		sizes = append(sizes, n)
		from := 0
		if cursor != "" {
			_, err = fmt.Sscan(cursor, &from)
		}
		for i := from; i < min(from+n, all); i++ {
			page = append(page, i)
		}
		if from+n < all {
			next = fmt.Sprint(from + n)
		}
		return page, next, err
	}
	for limit, want := range map[int]struct {
		pages []int
		n     int
		more  bool
	}{
		0:    {[]int{100, 100, 100}, all, false},
		5:    {[]int{5}, 5, true},
		150:  {[]int{100, 50}, 150, true},
		all:  {[]int{100, 100, 30}, all, false},
		1000: {[]int{100, 100, 100}, all, false},
	} {
		sizes = nil
		list, more, err := Collect(limit, fetch)
		if err != nil || len(list) != want.n || more != want.more || !slices.Equal(sizes, want.pages) {
			t.Errorf("limit %d: %d items, more %v, pages of %v (%v), want %+v", limit, len(list), more, sizes, err, want)
		}
		if !slices.IsSorted(list) {
			t.Errorf("limit %d: items are out of order", limit)
		}
	}
	list, _, err := Collect(0, func(string, int) ([]int, string, error) { return nil, "", nil })
	if list == nil || err != nil {
		t.Errorf("no items are %v (%v), want an empty list, which JSON shows as []", list, err)
	}
	failure := errors.New("failure")
	if _, _, err := Collect(0, func(string, int) ([]int, string, error) { return nil, "", failure }); !errors.Is(err, failure) {
		t.Errorf("a failed page: %v", err)
	}
}
