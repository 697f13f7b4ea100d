package ui_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// maxPage is the size that no page may have, in bytes.
const maxPage = 100_000

// open returns the HTML of a page, and fails the test if the page isn't found or is too large.
func open(t *testing.T, r *servertest.Registry, path string) string {
	t.Helper()
	a := r.Do(t, "GET", path, "").WantStatus(t, http.StatusOK)
	page := withoutStyle(string(a.Content))
	if len(page) >= maxPage {
		t.Errorf("%s has %d bytes", path, len(page))
	}
	return page
}

// send posts a form and returns the HTML of the answer, which may say that the form was refused.
func send(t *testing.T, r *servertest.Registry, path string, fields ...string) string {
	t.Helper()
	form := make(url.Values)
	for i := 0; i < len(fields); i += 2 {
		form.Add(fields[i], fields[i+1])
	}
	a := r.Do(t, "POST", path, form.Encode(), "Content-Type", "application/x-www-form-urlencoded", "Origin", r.URL)
	if a.StatusCode != http.StatusOK && (a.StatusCode < 400 || a.StatusCode >= 500) {
		t.Errorf("%s answers a form with status %d", path, a.StatusCode)
	}
	return string(a.Content)
}

// shows checks that a page has all the texts; a text that begins with "!" must not be there.
func shows(t *testing.T, page string, texts ...string) {
	t.Helper()
	_, main, _ := strings.Cut(page, "<main")
	for _, text := range texts {
		text, absent := strings.CutPrefix(text, "!")
		if strings.Contains(page, text) == absent {
			t.Errorf("the page has %q: %t; it begins with %.4000s", text, absent, main)
		}
	}
}

// undoOf returns the path and the fields of the form by which a page undoes what a form did.
func undoOf(t *testing.T, page string) (path string, fields []string) {
	t.Helper()
	form := regexp.MustCompile(`(?s)class="notice" role="status">.*?<form method="post" action="([^"]*)">(.*?)</form>`).FindStringSubmatch(page)
	if form == nil {
		t.Fatalf("no undo in %s", page)
	}
	for _, f := range regexp.MustCompile(`name="([^"]*)" value="([^"]*)"`).FindAllStringSubmatch(form[2], -1) {
		fields = append(fields, f[1], f[2])
	}
	return form[1], fields
}

func manifestPage(repository string, d oci.Digest) string {
	return "/ui/repositories/" + repository + "/-/manifests/" + d.String()
}

// pushImage pushes an image with a configuration and two layers under a tag.
func pushImage(t *testing.T, r *servertest.Registry, repository, tag, config string, more servertest.Object) oci.Digest {
	t.Helper()
	c := r.Push(t, repository, config)
	layers := []oci.Digest{r.Push(t, repository, "first layer"), r.Push(t, repository, "second layer of "+tag)}
	return r.Put(t, repository, tag, servertest.Image(t, c, layers, more))
}

const config = `{"architecture":"arm64","os":"linux","author":"builder","created":"2020-01-02T03:04:05Z",
	"config":{"Entrypoint":["/app","two words"],"Cmd":["--serve"],"Env":["A=1"],"Labels":{"team":"payments"},"User":"1000",
	"ExposedPorts":{"8080/tcp":{}},"WorkingDir":"/srv"},
	"history":[{"created_by":"ADD rootfs"},{"created_by":"ENV A=1","empty_layer":true},{"created_by":"RUN make"}]}`

// TestManifestPage: the page of an image shows its configuration, its layers with the commands
// that made them, its tags, why it is kept, and what refers to it, as a tree.
func TestManifestPage(t *testing.T) {
	t.Parallel()
	r := servertest.Setup(t)
	d := pushImage(t, r, "acme/deep/web", "v1", config, servertest.Object{"annotations": map[string]string{"org.example.source": "https://example.com/x"}})
	subject := func(of oci.Digest) servertest.Object { return servertest.Descriptor(oci.MediaTypeImageManifest, of, 1) }
	refer := func(of oci.Digest, kind string, annotations map[string]string) oci.Digest {
		m := r.Simple(t, "acme/deep/web", kind, servertest.Object{"subject": subject(of), "artifactType": kind, "annotations": annotations})
		return r.Put(t, "acme/deep/web", servertest.Digest(m).String(), m)
	}
	sbom := refer(d, "application/spdx+json", nil)
	refer(sbom, "application/vnd.dev.cosign.artifact.sig.v1+json", nil)
	refer(d, "application/vnd.in-toto+json", map[string]string{"in-toto.io/predicate-type": "https://slsa.dev/provenance/v1"})
	strange := refer(d, "application/vnd.example.strange", nil)
	attached := strings.Replace(d.String(), ":", "-", 1) + ".sig"
	r.Put(t, "acme/deep/web", attached, r.Simple(t, "acme/deep/web", "attached", nil))

	shows(t, open(t, r, "/ui/repositories/acme/deep/web"), "<td>linux/arm64</td>")
	page := open(t, r, manifestPage("acme/deep/web", d))
	shows(t, page, "linux/arm64", "/app &#34;two words&#34;", "--serve", "A=1", "<dt class=\"break\">team</dt><dd>payments</dd>", "8080/tcp", "/srv", "<code>1000</code>",
		"ADD rootfs", "RUN make", "!ENV A=1", "org.example.source", "https://example.com/x", "builder",
		`href="/ui/repositories/acme/deep/web/-/tags/v1"`, "SBOM (SPDX)", "signature (cosign)", "attestation (in-toto)", "https://slsa.dev/provenance/v1",
		"application/vnd.example.strange", `href="`+manifestPage("acme/deep/web", strange)+`"`, "/-/tags/"+attached, "Why it is kept",
		"tag v1 of acme/deep/web points to it", "docker pull "+strings.TrimPrefix(r.URL, "http://")+"/acme/deep/web@"+d.String())
	if !regexp.MustCompile(`(?s)SBOM \(SPDX\).*?<ul class="tree"><li>.*?signature \(cosign\)`).MatchString(page) {
		t.Errorf("the signature isn't below the SBOM that it signs: %s", page)
	}
	shows(t, open(t, r, manifestPage("acme/deep/web", sbom)), "SBOM (SPDX)", `<dt>Subject</dt><dd><a href="`+manifestPage("acme/deep/web", d)+`"`, "It has no layers")

	orphan := refer(servertest.Digest("no subject"), "application/sarif+json", nil)
	shows(t, open(t, r, manifestPage("acme/deep/web", orphan)), "scan report (SARIF)", "not in this repository", "is not in acme/deep/web", "!"+manifestPage("acme/deep/web", servertest.Digest("no subject")))

	a := r.Do(t, "GET", manifestPage("acme/deep/web", d)+"/raw", "").WantStatus(t, 200)
	if servertest.Digest(string(a.Content)) != d || !strings.HasPrefix(a.Header.Get("Content-Type"), "text/plain") || a.Header.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("raw: %v %s", a.Header, a.Content)
	}
	missing := string(r.Do(t, "GET", manifestPage("acme/deep/web", servertest.Digest("none")), "").WantStatus(t, 404).Content)
	shows(t, missing, "<h1>Not found</h1>")
	r.Do(t, "GET", "/ui/repositories/acme/deep/web/-/manifests/none", "").WantStatus(t, 400)
	r.Do(t, "GET", manifestPage("acme/none", d), "").WantStatus(t, 404)
}

// TestIndexPage: the page of an index shows its platforms and links to its manifests, also those
// that are not here, and an index of very many on several pages.
func TestIndexPage(t *testing.T) {
	t.Parallel()
	r := servertest.Setup(t, func(o *servertest.Options) {
		o.Catalog = o.NewCatalog(func(c *catalog.Options) { c.SparseIndexes = true })
	})
	image := r.Simple(t, "acme/web", "child", nil)
	child := r.Put(t, "acme/web", servertest.Digest(image).String(), image)
	list := []any{}
	entry := func(d oci.Digest, os, arch string) servertest.Object {
		e := servertest.Descriptor(oci.MediaTypeImageManifest, d, 1)
		e["platform"] = map[string]string{"os": os, "architecture": arch}
		return e
	}
	list = append(list, entry(child, "linux", "riscv64"), entry(servertest.Digest("absent"), "plan9", "mips"))
	small := r.Put(t, "acme/web", "small", servertest.Encode(t, servertest.Object{"schemaVersion": 2, "mediaType": oci.MediaTypeImageIndex, "manifests": list}))
	page := open(t, r, manifestPage("acme/web", small))
	shows(t, page, "<h1>Index ", "linux/riscv64, plan9/mips", `<a href="`+manifestPage("acme/web", child)+`"`, "not in this repository", "!Layers", "!"+manifestPage("acme/web", servertest.Digest("absent"))+`"`)
	shows(t, open(t, r, manifestPage("acme/web", child)), "<dt>Part of</dt>", manifestPage("acme/web", small))

	for i := range 3000 {
		list = append(list, entry(servertest.Digest(fmt.Sprint(i)), "linux", fmt.Sprintf("cpu%d", i)))
	}
	large := r.Put(t, "acme/web", "large", servertest.Encode(t, servertest.Object{"schemaVersion": 2, "mediaType": oci.MediaTypeImageIndex, "manifests": list}))
	page = open(t, r, manifestPage("acme/web", large))
	shows(t, page, "of 3,002", "1 to 30 of 3,002", "cpu5<", "!cpu100<", "Only its beginning")
	next := regexp.MustCompile(`href="([^"]*)" rel="next"`).FindStringSubmatch(page)
	if next == nil {
		t.Fatalf("no next page in %s", page)
	}
	shows(t, open(t, r, next[1]), "31 to 60 of 3,002", "First page", "cpu30<")
	shows(t, open(t, r, manifestPage("acme/web", large)+"?page=3000"), "3,001 to 3,002 of 3,002", "!rel=\"next\"")
	for _, nonsense := range []string{"-1", "x", "99999999999999999999", "3002"} {
		shows(t, open(t, r, manifestPage("acme/web", large)+"?page="+nonsense), "1 to 30 of 3,002")
	}
}

// TestIndexTree: the page of an index has each platform with what belongs to it: the attestation that BuildKit
// lists beside it, and what refers to it; an attestation of an image that isn't listed stands alone.
func TestIndexTree(t *testing.T) {
	t.Parallel()
	r := servertest.Setup(t)
	child := func(text string, more servertest.Object) oci.Digest {
		m := r.Simple(t, "acme/web", text, more)
		return r.Put(t, "acme/web", servertest.Digest(m).String(), m)
	}
	entry := func(d oci.Digest, platform map[string]string, annotations map[string]string) servertest.Object {
		e := servertest.Descriptor(oci.MediaTypeImageManifest, d, 1)
		e["platform"], e["annotations"] = platform, annotations
		return e
	}
	unknown := map[string]string{"os": "unknown", "architecture": "unknown"}
	attests := func(of oci.Digest) map[string]string {
		return map[string]string{"vnd.docker.reference.type": "attestation-manifest", "vnd.docker.reference.digest": of.String()}
	}
	amd, arm, attestation, stray := child("amd", nil), child("arm", nil), child("attestation", nil), child("stray", nil)
	index := r.Put(t, "acme/web", "v1", servertest.Encode(t, servertest.Object{"schemaVersion": 2, "mediaType": oci.MediaTypeImageIndex, "manifests": []any{
		entry(amd, map[string]string{"os": "linux", "architecture": "amd64"}, nil), entry(arm, map[string]string{"os": "linux", "architecture": "arm64", "variant": "v8"}, nil),
		entry(attestation, unknown, attests(amd)), entry(stray, unknown, attests(servertest.Digest("elsewhere"))),
	}}))
	subject := servertest.Object{"subject": servertest.Descriptor(oci.MediaTypeImageManifest, arm, 1), "artifactType": "application/spdx+json"}
	sbom := child("sbom", subject)
	for i := range 6 {
		child(fmt.Sprint("further", i), subject)
	}
	page := open(t, r, manifestPage("acme/web", index))
	tree := regexp.MustCompile(`(?s)<ul class="tree card">(.*?)<h2>`).FindStringSubmatch(page)
	if tree == nil {
		t.Fatalf("no tree in %s", page)
	}
	parts := strings.Split(tree[1], "<li><strong>")
	if len(parts) != 4 {
		t.Fatalf("%d platforms, want 3: %s", len(parts)-1, tree[1])
	}
	shows(t, parts[1], "linux/amd64", manifestPage("acme/web", amd), "attestation (BuildKit)", manifestPage("acme/web", attestation), "!SBOM", "!unknown")
	shows(t, parts[2], "linux/arm64/v8", manifestPage("acme/web", arm), "SBOM (SPDX)", "Its page</a> shows more", "!BuildKit")
	shows(t, parts[3], "attestation (BuildKit)", manifestPage("acme/web", stray), "!unknown")
	if strings.Count(parts[2], "SBOM (SPDX)") != 5 {
		t.Errorf("the referrers of an image are %s", parts[2])
	}
	shows(t, open(t, r, manifestPage("acme/web", arm)), manifestPage("acme/web", sbom), "!Platforms and what")
}

// TestHostileManifest: what a client has written into annotations, labels, commands and media
// types does not become HTML, does not change the direction of the page's text, and does not make
// the page large.
func TestHostileManifest(t *testing.T) {
	t.Parallel()
	r := servertest.Setup(t)
	const evil = "</dd><script>alert(1)</script>\u202egnp.exe\" onmouseover=alert(2) '"
	many := make(map[string]string)
	for i := range 2000 {
		many[fmt.Sprintf("%s%d", evil, i)] = strings.Repeat(`"`, 400)
	}
	var env, history []any
	labels := make(map[string]string)
	for i := range 100 { // the registry reads configurations of up to 1 MiB
		env = append(env, evil+strings.Repeat("<", 300)+fmt.Sprint(i))
		history = append(history, map[string]string{"created_by": evil + strings.Repeat("&", 300), "created": evil})
		labels[fmt.Sprint(evil, i)] = strings.Repeat(`"`, 400)
	}
	hostile := servertest.Encode(t, servertest.Object{
		"os": evil, "architecture": evil, "author": evil, "created": evil, "history": history,
		"config": servertest.Object{"Labels": labels, "Env": env, "User": evil, "Entrypoint": []string{evil}, "ExposedPorts": map[string]any{evil: nil}, "Cmd": "not a list"},
	})
	c := r.Push(t, "acme/web", hostile)
	var layers []any
	for i := range 400 {
		layers = append(layers, servertest.Descriptor("application/x-"+strings.Repeat("<", 200), r.Push(t, "acme/web", fmt.Sprint(i%3)), 1))
	}
	m := servertest.Image(t, c, nil, servertest.Object{"layers": layers, "annotations": many, "artifactType": "application/x-" + strings.Repeat("y", 200)})
	d := r.Put(t, "acme/web", "evil", m)
	for range 40 {
		s := r.Simple(t, "acme/web", "s", servertest.Object{
			"subject": servertest.Descriptor(oci.MediaTypeImageManifest, d, 1), "artifactType": "application/x-<script>",
			"annotations": map[string]string{"in-toto.io/predicate-type": evil + strings.Repeat("'", 500), "n": fmt.Sprint(len(layers))},
		})
		layers = append(layers, nil)
		r.Put(t, "acme/web", servertest.Digest(s).String(), s)
	}
	page := open(t, r, manifestPage("acme/web", d))
	shows(t, page, "!<script>", "!\u202e", "&lt;script&gt;alert(1)", "and 1,9", "There are more")
	if strings.Contains(page, "onmouseover=alert(2)") && !strings.Contains(page, "&#34; onmouseover") {
		t.Error("an attribute was broken out of")
	}
	for _, path := range []string{"/ui/repositories/acme/web", "/ui/repositories/acme/web/-/tags/evil", "/ui/repositories/acme/web/-/history"} {
		shows(t, open(t, r, path), "!<script>", "!\u202e")
	}

	// The largest manifest that the registry accepts.
	huge := r.Simple(t, "acme/web", "huge", servertest.Object{"annotations": map[string]string{"big": strings.Repeat("<", oci.MaxManifestSize/6-2000)}})
	if len(huge) < oci.MaxManifestSize*9/10 {
		t.Fatalf("the manifest has only %d bytes", len(huge))
	}
	big := r.Put(t, "acme/web", "huge", huge)
	shows(t, open(t, r, manifestPage("acme/web", big)), "big", "…", "Only its beginning")
	if a := r.Do(t, "GET", manifestPage("acme/web", big)+"/raw", ""); string(a.Content) != huge {
		t.Errorf("raw has %d bytes", len(a.Content))
	}

	// JSON whose indentation would be huge.
	deep := strings.Repeat("[", 3000) + strings.Repeat("1,", 300_000) + "1" + strings.Repeat("]", 3000)
	var b bytes.Buffer
	if err := json.Compact(&b, []byte(r.Simple(t, "acme/web", "deep", nil))); err != nil {
		t.Fatal(err)
	}
	nested := strings.TrimSuffix(b.String(), "}") + `,"x":` + deep + "}"
	open(t, r, manifestPage("acme/web", r.Put(t, "acme/web", "deep", nested)))
}

// TestTagPage: the page of a tag shows what it points to and what it pointed to. Forms delete it,
// restore it, and undo both.
func TestTagPage(t *testing.T) {
	t.Parallel()
	r := servertest.Setup(t)
	const page = "/ui/repositories/acme/web/-/tags/v1"
	first := pushImage(t, r, "acme/web", "v1", config, nil)
	second := r.Put(t, "acme/web", "v1", r.Simple(t, "acme/web", 2, nil))
	short := func(d oci.Digest) string { return d.String()[7:19] }
	text := open(t, r, page)
	shows(t, text, "<h1>v1</h1>", second.String(), "docker pull "+strings.TrimPrefix(r.URL, "http://")+"/acme/web:v1", "crane pull", "not protected",
		short(first), ">moved<", `aria-label="Restore v1 to `+short(first)+`"`, "!Restore v1 to "+short(second))

	text = send(t, r, page, "do", "delete")
	shows(t, text, "The tag was deleted.", "exist now.", ">deleted<", "Restore v1 to "+short(second), "Restore v1 to "+short(first))
	r.Do(t, "GET", "/v2/acme/web/manifests/v1", "").WantStatus(t, 404)
	shows(t, open(t, r, page), "exist now.")
	path, fields := undoOf(t, text)
	shows(t, send(t, r, path, fields...), "v1 points to "+short(second)+" again.", "!exist now.")
	r.Do(t, "GET", "/v2/acme/web/manifests/v1", "").Want(t, 200, "", "Docker-Content-Digest", second.String())

	text = send(t, r, page, "do", "restore", "tag", "v1", "digest", first.String(), "seen", second.String())
	r.Do(t, "GET", "/v2/acme/web/manifests/v1", "").Want(t, 200, "", "Docker-Content-Digest", first.String())
	path, fields = undoOf(t, text)
	send(t, r, path, fields...)
	r.Do(t, "GET", "/v2/acme/web/manifests/v1", "").Want(t, 200, "", "Docker-Content-Digest", second.String())
	shows(t, send(t, r, page, "do", "restore", "digest", servertest.Digest("none").String(), "seen", second.String()), `class="notice bad"`, "v1 was not restored.")
	shows(t, send(t, r, page, "do", "restore", "digest", "<b>", "seen", second.String()), "!<b>", "v1 was not restored.")
	shows(t, send(t, r, "/ui/repositories/acme/web/-/tags/none", "do", "delete"), "The tag was not deleted.")

	r.Manage(t, "POST", "/repository/acme/web/tagprotection", `{"pattern":"^v"}`).WantStatus(t, 201)
	shows(t, open(t, r, page), "protected</dd>", "A rule protects it", `href="/ui/repositories/acme/web/-/settings#protected"`, "^v of repository acme/web", "!Move the tag", "!Delete this tag")
	shows(t, send(t, r, page, "do", "delete"), `class="notice bad"`, "The tag was not deleted.", "protected by the rule", "!exist now.")
	r.Do(t, "GET", "/ui/repositories/acme/web/-/tags/never", "").WantStatus(t, 404)
	r.Do(t, "GET", "/ui/repositories/acme/none/-/tags/v1", "").WantStatus(t, 404)
}

// TestHistoryPage: the history of a repository has the changes of all tags, the latest first, on
// several pages, and restores.
func TestHistoryPage(t *testing.T) {
	t.Parallel()
	r := servertest.Setup(t)
	r.Push(t, "acme/web", "x")
	const page = "/ui/repositories/acme/web/-/history"
	shows(t, open(t, r, page), "Pushing a tag begins its history", `aria-current="page">History`)
	d := r.Put(t, "acme/web", "gone", r.Simple(t, "acme/web", "gone", nil))
	r.Do(t, "DELETE", "/v2/acme/web/manifests/gone", "").WantStatus(t, 202)
	for i := range 45 {
		r.Put(t, "acme/web", fmt.Sprintf("t%d", i), r.Simple(t, "acme/web", i, nil))
	}
	text := open(t, r, page)
	shows(t, text, ">t44<", ">t5<", "!>t4<", "!>gone<")
	next := regexp.MustCompile(`href="([^"]*)" rel="next"`).FindStringSubmatch(text)
	if next == nil {
		t.Fatalf("no next page in %s", text)
	}
	shows(t, open(t, r, strings.ReplaceAll(next[1], "&amp;", "&")), ">t0<", ">gone<", ">deleted<", "First page")
	shows(t, open(t, r, page+"?q=gone"), ">gone<", "!>t1<")
	shows(t, open(t, r, page+"?q=%3Cscript%3E"), "!<script>", "has no tag that contains")
	shows(t, send(t, r, page, "do", "restore", "tag", "gone", "digest", d.String(), "seen", "none"), "gone points to ")
	r.Do(t, "GET", "/v2/acme/web/manifests/gone", "").Want(t, 200, "", "Docker-Content-Digest", d.String())
	shows(t, send(t, r, page, "do", "restore", "tag", "../x", "digest", d.String(), "seen", "none"), "was not restored")
	r.Do(t, "GET", "/ui/repositories/acme/none/-/history", "").WantStatus(t, 404)
}

// TestImagePagesByRole: readers see images and no explanation, may not restore or delete, and are
// told so; strangers see nothing.
func TestImagePagesByRole(t *testing.T) {
	t.Parallel()
	r := servertest.Setup(t, func(o *servertest.Options) { o.Access = &auth.Options{} })
	r.AddAccount(t, "root", true)
	root := r.With(servertest.As("root"))
	d := root.Put(t, "acme/web", "v1", root.Simple(t, "acme/web", 1, nil))
	second := root.Put(t, "acme/web", "v1", root.Simple(t, "acme/web", 2, nil))
	root.Manage(t, "POST", "/repository/acme/web/tagprotection", `{"pattern":"^secret|v1"}`).WantStatus(t, 201)
	for name, role := range map[string]auth.Role{"reader": auth.Reader, "maintainer": auth.Maintainer, "admin": auth.Administrator} {
		r.AddAccount(t, name, false)
		r.Grant(t, "acme", name, role)
	}
	r.AddAccount(t, "stranger", false)
	as := func(name string) *servertest.Registry { return r.With(servertest.As(name)) }
	const tag = "/ui/repositories/acme/web/-/tags/v1"
	for _, path := range []string{tag, "/ui/repositories/acme/web/-/history", manifestPage("acme/web", d), manifestPage("acme/web", d) + "/raw"} {
		as("stranger").Do(t, "GET", path, "").WantStatus(t, 403)
		r.Do(t, "GET", path, "").WantStatus(t, 303)
		as("reader").Do(t, "GET", path, "").WantStatus(t, 200)
	}
	shows(t, open(t, as("reader"), manifestPage("acme/web", second)), "!Why it is kept", "!gc explain")
	shows(t, open(t, as("admin"), manifestPage("acme/web", second)), "Why it is kept", "purser gc explain")
	shows(t, open(t, as("reader"), tag), "A rule protects it", "!secret")
	shows(t, open(t, as("maintainer"), tag), "secret")
	shows(t, send(t, as("reader"), tag, "do", "delete"), "The tag was not deleted.")
	shows(t, send(t, as("reader"), tag, "do", "restore", "digest", d.String()), "was not restored")
	a := r.Do(t, "POST", tag, "do=delete", "Content-Type", "application/x-www-form-urlencoded", "Origin", r.URL)
	if a.StatusCode < 400 {
		t.Errorf("nobody deleted: %d", a.StatusCode)
	}
	r.Do(t, "GET", "/v2/acme/web/manifests/v1", "", servertest.As("root")...).Want(t, 200, "", "Docker-Content-Digest", second.String())
}

// TestNoHiddenPlatform: who made an index can't hide one of its images among what is attached to another.
func TestNoHiddenPlatform(t *testing.T) {
	t.Parallel()
	r := servertest.Setup(t)
	child := func(text string) oci.Digest {
		m := r.Simple(t, "acme/web", text, nil)
		return r.Put(t, "acme/web", servertest.Digest(m).String(), m)
	}
	amd, win := child("amd"), child("win")
	entry := func(d oci.Digest, os string, annotations map[string]string) servertest.Object {
		e := servertest.Descriptor(oci.MediaTypeImageManifest, d, 1)
		e["platform"], e["annotations"] = map[string]string{"os": os, "architecture": "amd64"}, annotations
		return e
	}
	index := r.Put(t, "acme/web", "v1", servertest.Encode(t, servertest.Object{"schemaVersion": 2, "mediaType": oci.MediaTypeImageIndex, "manifests": []any{
		entry(amd, "linux", nil), entry(win, "windows", map[string]string{"vnd.docker.reference.digest": amd.String()}),
	}}))
	page := open(t, r, manifestPage("acme/web", index))
	tree := regexp.MustCompile(`(?s)<ul class="tree card">(.*?)<h2>`).FindStringSubmatch(page)
	shows(t, tree[1], "linux/amd64", "windows/amd64")
}
