package server_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/server/servertest"
)

// under sends a request whose Host header is `host`, and returns the answer's Location header,
// Link header and body.
func (r *registry) under(t *testing.T, host, method, path, body string, headers ...string) (location, link, text string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, r.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	if host != "" {
		req.Host = host
	}
	res, err := servertest.Client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close() //nolint:errcheck // read to its end
	b, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode >= 300 {
		t.Fatalf("%s %s: %s %s %v", method, path, res.Status, b, err)
	}
	return res.Header.Get("Location"), res.Header.Get("Link"), string(b)
}

// TestExternalURL: the URLs in an answer must begin with the external URL if the request's Host
// header names the external URL's host, or if a trusted proxy has replaced the Host header by
// Purser's own address. All other requests must get relative URLs.
func TestExternalURL(t *testing.T) {
	t.Parallel()
	const outside = "https://registry.example.com"
	for _, c := range []struct {
		external, host string
		headers        []string
		want           string
	}{
		{"", "registry.example.com", nil, ""},
		{outside, "registry.example.com", nil, outside},
		{outside, "Registry.Example.Com:443", nil, outside},
		{outside, "registry.example.com:8443", nil, ""},
		{outside + ":8443", "registry.example.com:8443", nil, outside + ":8443"},
		{outside, "", nil, ""},
		{outside, "", []string{"X-Forwarded-For", "198.51.100.1"}, outside},
		{outside, "registry.internal", []string{"X-Forwarded-For", "198.51.100.1"}, ""},
		{outside, "registry.internal", []string{"X-Forwarded-Host", "registry.example.com", "X-Forwarded-Proto", "https"}, ""},
	} {
		r := setup(t, behindProxies, func(o *servertest.Options) { o.Server.ExternalURL = c.external })
		begin, _, _ := r.under(t, c.host, "POST", "/v2/app/blobs/uploads/", "", c.headers...)
		if !strings.HasPrefix(begin, c.want+"/v2/app/blobs/uploads/") {
			t.Errorf("%+v: the upload is at %s", c, begin)
		}
		d := digest("hello")
		done, _, _ := r.under(t, c.host, "PUT", strings.TrimPrefix(begin, c.want)+"?digest="+d.String(), "hello", c.headers...)
		if done != c.want+"/v2/app/blobs/"+d.String() {
			t.Errorf("%+v: the blob is at %s", c, done)
		}
		payload := r.Simple(t, "app", 1, nil)
		r.Put(t, "app", "v1", payload)
		r.Put(t, "app", "v2", payload)
		_, link, _ := r.under(t, c.host, "GET", "/v2/app/tags/list?n=1", "", c.headers...)
		if link != "<"+c.want+`/v2/app/tags/list?last=v1&n=1>; rel="next"` {
			t.Errorf("%+v: the list goes on at %s", c, link)
		}
		_, _, document := r.under(t, c.host, "GET", "/api/v1/openapi.json", "", c.headers...)
		if strings.Contains(document, `"servers":[{"url":"`+c.external+`"}]`) != (c.external != "") {
			t.Errorf("%+v: the document has other servers", c)
		}
	}
}
