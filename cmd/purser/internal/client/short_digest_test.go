package client

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/server/servertest"
)

// TestShortDigests: commands take the beginning of a digest where only one manifest of the repository has
// it. Where several have it, they list those and do nothing.
func TestShortDigests(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	o.login("root")
	root := o.r.With(servertest.As("root"))
	config := root.Push(t, "acme/app", "{}")
	one, two := servertest.Alike(t, func(i int) string {
		return servertest.Image(t, config, nil, servertest.Object{"annotations": map[string]string{"n": fmt.Sprint(i)}})
	})
	a, b := root.Put(t, "acme/app", "v1", one), root.Put(t, "acme/app", "v2", two)
	short := a.Hex()[:6]
	for _, args := range [][]string{
		{"tag", "move", "acme/app:new", short}, {"tag", "restore", "acme/app:v1", "sha256:" + short + "…"},
		{"audit", "list", "acme/app", "--digest", short}, {"audit", "export", "--digest", "acme/app@" + short},
		{"pulls", "history", "acme/app@" + short},
	} {
		o.fails("several manifests of acme/app have a digest that begins with", 2, "", args...)
		_, _, stderr := o.purser("", args...)
		for _, want := range []string{a.String() + "  v1    image  ", b.String() + "  v2    image  ", "DIGEST  ", "KIND   SIZE"} {
			if !strings.Contains(stderr, want) {
				t.Errorf("purser %q doesn't list %q:\n%s", args, want, stderr)
			}
		}
	}
	if tags := o.ok("", "tag", "list", "acme/app"); strings.Contains(tags, "new") {
		t.Errorf("a tag was made of one of several manifests:\n%s", tags)
	}
	at := 6
	for a.Hex()[:at] == b.Hex()[:at] {
		at++
	}
	only := a.Hex()[:at]
	for _, written := range []string{only, "sha256:" + only, only + "…", "acme/app@" + only, a.String()} {
		if text := o.ok("", "tag", "move", "acme/app:new", written); text != "acme/app:new points to "+a.String()+".\n" {
			t.Errorf("%s: %s", written, text)
		}
	}
	if text := o.ok("", "tag", "restore", "acme/app:v1", only); text != "acme/app:v1 points to "+a.String()+" again.\n" {
		t.Errorf("restore: %s", text)
	}
	o.fails("acme/app:v2 never pointed to "+a.String(), 2, "", "tag", "restore", "acme/app:v2", only)
	o.fails("another repository than acme/app", 2, "", "tag", "move", "acme/app:new", "acme/other@"+only)
	o.fails("no manifest of acme/app has a digest that begins with 000000", 2, "", "tag", "move", "acme/app:new", "000000")
	o.fails("at least 6", 2, "", "tag", "move", "acme/app:new", "0000")
	o.fails("name the repository as TARGET", 2, "", "audit", "list", "--digest", only)
	o.fails("--digest", 2, "", "audit", "list", "--digest", "abc")
	for _, args := range [][]string{{"acme/app", "--digest", only}, {"--digest", "acme/app@" + only}, {"--digest", a.String()}} {
		if text := o.ok("", append([]string{"audit", "list", "--kind", "push_repo"}, args...)...); strings.Count(text, "push_repo") != 1 || !strings.Contains(text, "acme/app:v1") {
			t.Errorf("%q:\n%s", args, text)
		}
	}
}

// TestShortDigestIsResolvedOnce: what is pushed after a short digest was resolved isn't taken for what was
// meant: the command acts by the whole digest, which it prints.
func TestShortDigestIsResolvedOnce(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	o.login("root")
	root := o.r.With(servertest.As("root"))
	config := root.Push(t, "acme/app", "{}")
	one, two := servertest.Alike(t, func(i int) string {
		return servertest.Image(t, config, nil, servertest.Object{"annotations": map[string]string{"n": fmt.Sprint(i)}})
	})
	a := root.Put(t, "acme/app", "v1", one)
	pushed := false
	between := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			target, err := url.Parse(o.r.URL)
			if err != nil {
				t.Error(err)
			}
			r.SetURL(target)
		},
		ModifyResponse: func(res *http.Response) error {
			if strings.Contains(res.Request.URL.Path, "/digest/") {
				root.Put(t, "acme/app", "v2", two)
				pushed = true
			}
			return nil
		},
	})
	t.Cleanup(between.Close)
	o.environ = append(o.environ, "PURSER_SERVER="+between.URL)
	o.ok(servertest.PasswordOf("root")+"\n", "login", "--username", "root", "--password-stdin")
	if text := o.ok("", "tag", "move", "acme/app:new", a.Hex()[:6]); text != "acme/app:new points to "+a.String()+".\n" || !pushed {
		t.Errorf("%s (pushed meanwhile: %v)", text, pushed)
	}
	o.fails("several manifests of acme/app", 2, "", "tag", "move", "acme/app:new", a.Hex()[:6])
}
