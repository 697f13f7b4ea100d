package ui_test

import (
	"html"
	"regexp"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server/servertest"
)

var shownCommand = regexp.MustCompile(`<tr><th scope="row">[^<]+</th><td class="break"><code>([^<]*)</code>`)

// hostName stands for the registry's host in the commands that a test expects.
var hostName = regexp.MustCompile(`\bH\b`)

// commandsOn returns the commands that a page shows to pull.
func commandsOn(t *testing.T, r *servertest.Registry, path string) string {
	t.Helper()
	var list []string
	for _, m := range shownCommand.FindAllStringSubmatch(open(t, r, path), -1) {
		list = append(list, html.UnescapeString(m[1]))
	}
	return strings.Join(list, "\n")
}

// withConfig pushes a manifest whose configuration has a media type.
func withConfig(t *testing.T, r *servertest.Registry, repository, tag, mediaType string) oci.Digest {
	t.Helper()
	c := r.Push(t, repository, "{}")
	return r.Put(t, repository, tag, r.Simple(t, repository, tag, servertest.Object{"config": servertest.Descriptor(mediaType, c, 2)}))
}

// TestShownCommands: pages show the commands of those clients that can use what a tag points to,
// with what the clients need over http. End-to-end tests run these commands.
func TestShownCommands(t *testing.T) {
	t.Parallel()
	for _, reach := range []struct {
		url          string
		image, chart string
		artifact     string
		onlyInsecure bool // Docker needs a setting of its daemon
	}{
		{"https://registry.example.com",
			"docker pull H/acme/web:v1\npodman pull H/acme/web:v1\ncrane pull H/acme/web:v1 image.tar\nskopeo copy docker://H/acme/web:v1 oci:image\nregctl image export H/acme/web:v1 image.tar",
			"helm pull oci://H/acme/chart --version 1.2.3+b.1\n" +
				"oras copy H/acme/chart:1.2.3_b.1 --to-oci-layout image:latest\ncrane pull --format oci H/acme/chart:1.2.3_b.1 image\nregctl image export H/acme/chart:1.2.3_b.1 image.tar",
			"oras pull H/acme/sbom:v1\n" +
				"oras copy H/acme/sbom:v1 --to-oci-layout image:latest\ncrane pull --format oci H/acme/sbom:v1 image\nregctl image export H/acme/sbom:v1 image.tar", false},
		{"http://registry.example.com:5000",
			"docker pull H/acme/web:v1\npodman pull --tls-verify=false H/acme/web:v1\ncrane pull --insecure H/acme/web:v1 image.tar\n" +
				"skopeo copy --src-tls-verify=false docker://H/acme/web:v1 oci:image\nregctl --host reg=H,tls=disabled image export H/acme/web:v1 image.tar",
			"helm pull --plain-http oci://H/acme/chart --version 1.2.3+b.1\n" +
				"oras copy --from-plain-http H/acme/chart:1.2.3_b.1 --to-oci-layout image:latest\ncrane pull --insecure --format oci H/acme/chart:1.2.3_b.1 image\nregctl --host reg=H,tls=disabled image export H/acme/chart:1.2.3_b.1 image.tar",
			"oras pull --plain-http H/acme/sbom:v1\n" +
				"oras copy --from-plain-http H/acme/sbom:v1 --to-oci-layout image:latest\ncrane pull --insecure --format oci H/acme/sbom:v1 image\nregctl --host reg=H,tls=disabled image export H/acme/sbom:v1 image.tar", true},
	} {
		r := servertest.Setup(t, func(o *servertest.Options) { o.Server.ExternalURL = reach.url })
		_, host, _ := strings.Cut(reach.url, "://")
		want := func(path, commands string) {
			t.Helper()
			if got := commandsOn(t, r, path); got != hostName.ReplaceAllString(commands, host) {
				t.Errorf("%s: %s shows\n%s\nwant\n%s", reach.url, path, got, commands)
			}
		}
		const ofTag = "/ui/repositories/acme/web/-/tags/"
		d := pushImage(t, r, "acme/web", "v1", config, nil)
		want(ofTag+"v1", reach.image)
		want(manifestPage("acme/web", d), strings.ReplaceAll(reach.image, ":v1", "@"+d.String()))
		if got := strings.Contains(open(t, r, ofTag+"v1"), "insecure-registries"); got != reach.onlyInsecure {
			t.Errorf("%s: the page speaks of Docker's setting: %v", reach.url, got)
		}
		withConfig(t, r, "acme/chart", "1.2.3_b.1", "application/vnd.cncf.helm.config.v1+json")
		want("/ui/repositories/acme/chart", reach.chart)
		latest := withConfig(t, r, "acme/chart", "latest", "application/vnd.cncf.helm.config.v1+json")
		by := strings.ReplaceAll(reach.chart, " --version 1.2.3+b.1", "@"+latest.String())
		want("/ui/repositories/acme/chart/-/tags/latest", strings.ReplaceAll(by, "1.2.3_b.1", "latest"))
		// oras pulls only layers that have the names of files.
		thing := r.Push(t, "acme/sbom", "{}")
		named := servertest.Descriptor("text/plain", thing, 2)
		named["annotations"] = servertest.Object{"org.opencontainers.image.title": "sbom.txt"}
		unnamed := servertest.Descriptor("text/plain", thing, 2)
		_, wholeArtifact, _ := strings.Cut(reach.artifact, "\n")
		for tag, layers := range map[string][]any{"v1": {named}, "partly": {named, unnamed}, "unnamed": {unnamed}, "empty": {}} {
			commands := reach.artifact
			if tag != "v1" {
				commands = strings.ReplaceAll(wholeArtifact, ":v1", ":"+tag)
			}
			m := r.Put(t, "acme/sbom", tag, r.Simple(t, "acme/sbom", tag, servertest.Object{
				"config": servertest.Descriptor("application/vnd.example.thing", thing, 2), "layers": layers}))
			want("/ui/repositories/acme/sbom/-/tags/"+tag, commands)
			want(manifestPage("acme/sbom", m), strings.ReplaceAll(commands, ":"+tag, "@"+m.String()))
		}

		// Signatures are newer than the image, and have the configuration of an image.
		attached := strings.Replace(d.String(), ":", "-", 1)
		c := r.Push(t, "acme/web", "{}")
		simple := r.Push(t, "acme/web", "signature")
		sig := r.Put(t, "acme/web", attached+".sig", r.Simple(t, "acme/web", "sig", servertest.Object{
			"config": servertest.Descriptor(servertest.ConfigType, c, 2),
			"layers": []any{servertest.Descriptor("application/vnd.dev.cosign.simplesigning.v1+json", simple, 9)}}))
		want("/ui/repositories/acme/web", reach.image)
		_, whole, _ := strings.Cut(reach.artifact, "\n")
		asArtifact := strings.ReplaceAll(whole, "sbom:v1", "web@"+sig.String())
		want(manifestPage("acme/web", sig), asArtifact)
		want(ofTag+attached+".sig", strings.ReplaceAll(asArtifact, "@"+sig.String(), ":"+attached+".sig"))

		// More signatures than a page has tags.
		for i := range 52 {
			of := strings.Replace(servertest.Digest(strings.Repeat("x", i)).String(), ":", "-", 1)
			r.Put(t, "acme/web", of, r.Simple(t, "acme/web", "sig", nil))
		}
		want("/ui/repositories/acme/web", reach.image)
		want("/ui/repositories/acme/web?q=sha256", "")
	}
}
