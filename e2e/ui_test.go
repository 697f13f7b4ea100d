package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	"github.com/chromedp/chromedp"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// hostile is text that a careless page would run, or would let change the text around it.
const hostile = `<script>alert(1)</script>"><img src=x onerror=alert(2)> ` + "\u202egnp.exe" + ` {{.}} javascript:alert(3)`

// openUI starts an open registry, fills it for the pages of its UI, and starts a browser.
func openUI(t *testing.T, o options) (*registry, *browser) {
	t.Helper()
	beginOwn(t)
	r := startRegistry(t, o)
	push, blob := pushers(t, r, nil)
	fillForPages(t, r, push, blob)
	return r, newBrowser(t)
}

// fillForPages pushes what the pages have to show: images of several platforms, attached
// manifests, text that is hostile, and pulls.
func fillForPages(t *testing.T, r *registry, push func(repo, tag string, m any, mediaType string) v1.Descriptor, blob func(repo string, content []byte) v1.Descriptor) {
	t.Helper()
	layer := randomBytes(20 << 10)
	image := func(repo, tag, arch string, subject *v1.Descriptor, artifact string) v1.Descriptor {
		config := fmt.Appendf(nil, `{"os":"linux","architecture":%q,"author":%q,"rootfs":{"type":"layers"},"config":{"Env":["A=%s"],"Labels":{"evil":%q},"Entrypoint":["/app"]},
			"history":[{"created":"2026-11-01T10:00:00Z","created_by":%q},{"created_by":"ENTRYPOINT","empty_layer":true}],"comment":%q}`, arch, hostile, "x", hostile, "RUN "+hostile, tag+artifact+arch)
		m := v1.Manifest{MediaType: v1.MediaTypeImageManifest, ArtifactType: artifact, Subject: subject,
			Annotations: map[string]string{"org.opencontainers.image.description": hostile, hostile: "key"}}
		m.SchemaVersion = 2
		m.Config = blob(repo, config)
		m.Config.MediaType = v1.MediaTypeImageConfig
		l := blob(repo, layer)
		l.MediaType = v1.MediaTypeImageLayer
		m.Layers = []v1.Descriptor{l}
		return push(repo, tag, m, v1.MediaTypeImageManifest)
	}
	index := v1.Index{MediaType: v1.MediaTypeImageIndex}
	index.SchemaVersion = 2
	for _, arch := range []string{"amd64", "arm64"} {
		d := image("acme/web", "", arch, nil, "")
		d.Platform = &v1.Platform{OS: "linux", Architecture: arch}
		index.Manifests = append(index.Manifests, d)
	}
	whole := push("acme/web", "v1.0", index, v1.MediaTypeImageIndex)
	signature := image("acme/web", "", "unknown", &whole, "application/vnd.dev.cosign.artifact.sig.v1+json")
	image("acme/web", "", "unknown", &whole, "application/spdx+json")
	image("acme/web", "", "unknown", &signature, "application/vnd.in-toto+json")
	for i := range 60 { // more than a page
		image("acme/web", fmt.Sprintf("pr-%d", i), "amd64", nil, "")
	}
	image("acme/deep/er/name", "latest", "amd64", nil, "")
	image("library/alpine", "3.22", "amd64", nil, "")
}

// pushers returns functions that push to the registry with the given header, for fillForPages.
func pushers(t *testing.T, r *registry, header map[string]string) (push func(repo, tag string, m any, mediaType string) v1.Descriptor, blob func(repo string, content []byte) v1.Descriptor) {
	t.Helper()
	send := func(q request) {
		t.Helper()
		for name, value := range header {
			q.header[name] = value
		}
		if _, err := r.API().do(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	blob = func(repo string, content []byte) v1.Descriptor {
		d := descriptor("", content)
		send(request{method: "POST", path: "/v2/" + repo + "/blobs/uploads/?digest=" + d.Digest.String(), body: content, want: 201,
			header: map[string]string{"Content-Type": "application/octet-stream"}})
		return d
	}
	push = func(repo, tag string, m any, mediaType string) v1.Descriptor {
		text, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		d := descriptor(mediaType, text)
		if tag == "" {
			tag = d.Digest.String()
		}
		send(request{method: "PUT", path: "/v2/" + repo + "/manifests/" + tag, body: text, want: 201, header: map[string]string{"Content-Type": mediaType}})
		return d
	}
	return push, blob
}

// TestUIMainPages opens the pages that people come to first in a browser, and types into one.
func TestUIMainPages(t *testing.T) {
	r, b := openUI(t, options{})
	b.look(1280, 900, "light")
	b.open(r.URL() + "/ui/")
	if n := eval[int](b, `document.querySelectorAll("link[rel=stylesheet], script:not([defer])").length`); n != 0 {
		t.Errorf("%d files hold up the first paint of the first page", n)
	}
	b.wait("the style sheet is in the browser's cache", `document.cookie.includes("purser_style=")`)
	for path, want := range map[string]string{
		"/": "Purser", "/ui/namespaces": "acme", "/ui/repositories": "acme/web", "/ui/repositories/acme/web": "pr-59",
		"/ui/repositories/acme/web/-/tags/v1.0": "arm64", "/ui/repositories/acme/web/-/policies/new": "Preview", "/ui/gc": "", "/ui/audit": "acme/web",
	} {
		if status := b.open(r.URL() + path); status != http.StatusOK {
			t.Errorf("%s: status %d", path, status)
		}
		says(t, b.text(), want)
		b.checkPage(path)
	}
	if n := eval[int](b, `document.querySelectorAll("link[rel=stylesheet], script:not([defer])").length`); n != 1 {
		t.Errorf("%d files hold up the first paint of a later page, want the style sheet that the browser has", n)
	}
	if n := eval[int](b, `performance.getEntriesByType("resource").filter(e => e.name.endsWith("app.css") && e.transferSize > 0).length`); n != 0 {
		t.Error("a later page loads the style sheet again")
	}
	b.open(r.URL() + "/ui/repositories")
	b.do("searching", chromedp.SendKeys(chromedp.CSS("#main input[name=q]"), "deep"))
	b.wait("the results follow", `document.querySelectorAll("#results tbody tr").length == 1`)
	b.checkPage("the results of a search")
}
