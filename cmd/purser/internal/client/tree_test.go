package client

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// treeRegistry returns a registry whose acme/web:v1 is an index of two platforms: for linux/amd64 BuildKit has put an
// attestation into the index, to linux/arm64/v8 six SBOMs refer, of which one is signed.
func treeRegistry(t *testing.T) (o *office, root *servertest.Registry, digests map[string]oci.Digest) {
	t.Helper()
	o = newOffice(t)
	o.login("root")
	root, digests = o.r.With(servertest.As("root")), make(map[string]oci.Digest)
	child := func(name string, more servertest.Object) oci.Digest {
		m := root.Simple(t, "acme/web", name, more)
		digests[name] = root.Put(t, "acme/web", servertest.Digest(m).String(), m)
		return digests[name]
	}
	entry := func(d oci.Digest, platform, annotations map[string]string) servertest.Object {
		e := servertest.Descriptor(oci.MediaTypeImageManifest, d, 1)
		e["platform"], e["annotations"] = platform, annotations
		return e
	}
	amd, arm, attestation := child("amd", nil), child("arm", nil), child("attestation", nil)
	digests["index"] = root.Put(t, "acme/web", "v1", servertest.Encode(t, servertest.Object{"schemaVersion": 2, "mediaType": oci.MediaTypeImageIndex, "manifests": []any{
		entry(amd, map[string]string{"os": "linux", "architecture": "amd64"}, nil), entry(arm, map[string]string{"os": "linux", "architecture": "arm64", "variant": "v8"}, nil),
		entry(attestation, map[string]string{"os": "unknown", "architecture": "unknown"},
			map[string]string{"vnd.docker.reference.type": "attestation-manifest", "vnd.docker.reference.digest": amd.String()}),
	}}))
	of := func(subject oci.Digest, kind string) servertest.Object {
		return servertest.Object{"subject": servertest.Descriptor(oci.MediaTypeImageManifest, subject, 1), "artifactType": kind}
	}
	for i := range 6 {
		child(fmt.Sprint("sbom", i), of(arm, "application/spdx+json"))
	}
	child("signature", of(digests["index"], "application/vnd.dev.cosign.artifact.sig.v1+json"))
	notes := of(digests["signature"], "text/x-notes")
	notes["annotations"] = map[string]string{"org.opencontainers.image.title": "a\x1b[31mb"}
	child("notes", notes)
	digests["tag"] = root.Put(t, "acme/web", strings.Replace(digests["index"].String(), ":", "-", 1)+".sbom", root.Simple(t, "acme/web", "by tag", nil))
	return o, root, digests
}

var sizeForm = regexp.MustCompile(`\|[0-9.]+ (B|KiB)\|`)

// TestManifestShow: an index is a tree of its platforms, with what is attached to each, and is so with its tag.
func TestManifestShow(t *testing.T) {
	t.Parallel()
	o, root, digests := treeRegistry(t)
	d := func(name string) string { return digests[name].String()[:19] }
	sbom := func(i int) string { return "│├─ SBOM (SPDX)|" + d(fmt.Sprint("sbom", i)) + "|SIZE|-" }
	want := []string{
		"acme/web:v1|" + d("index") + "|SIZE|index",
		"├─ linux/amd64|" + d("amd") + "|SIZE|image",
		"│└─ attestation (BuildKit)|" + d("attestation") + "|SIZE|-",
		"├─ linux/arm64/v8|" + d("arm") + "|SIZE|image",
		sbom(0), sbom(1), sbom(2), sbom(3), sbom(4),
		"│└─ and more|-|-|-",
		"├─ signature (cosign)|" + d("signature") + "|SIZE|-",
		"│└─ artifact|" + d("notes") + "|SIZE|text/x-notes, a�[31mb",
		"└─ SBOM (cosign)|" + d("tag") + "|SIZE|by the name of a tag",
		"All that is attached to one: purser manifest show acme/web@DIGEST",
	}
	text := o.ok("", "manifest", "show", "acme/web:v1")
	lines := strings.Split(strings.TrimSpace(text), "\n")[1:]
	for i, line := range lines {
		line = sizeForm.ReplaceAllString(gap.ReplaceAllString(strings.ReplaceAll(line, "│  ", "│"), "|"), "|SIZE|")
		if i >= len(want) || line != want[i] {
			t.Errorf("line %d is %q, want %q", i, line, want[min(i, len(want)-1)])
		}
	}
	if len(lines) != len(want) {
		t.Fatalf("%d lines, want %d:\n%s", len(lines), len(want), text)
	}
	if show := o.ok("", "tag", "show", "acme/web:v1"); !strings.HasSuffix(show, "\n\n"+text) {
		t.Errorf("the tag is shown as\n%s\nwithout\n%s", show, text)
	}
	for _, written := range []string{digests["index"].String(), d("index"), digests["index"].Hex()[:12]} {
		if again := o.ok("", "manifest", "show", "acme/web@"+written); !strings.Contains(again, "\nacme/web@"+written+" ") || !strings.Contains(again, "├─ linux/arm64/v8 ") {
			t.Errorf("%s is shown as\n%s", written, again)
		}
	}
	if all := o.ok("", "manifest", "show", "acme/web@"+d("arm")); strings.Count(all, "SBOM (SPDX)") != 6 || strings.Contains(all, "and more") {
		t.Errorf("the image has\n%s", all)
	}
	limited := o.ok("", "manifest", "show", "acme/web:v1", "--limit", "1")
	if !strings.Contains(limited, "├─ and 1 more ") || !strings.HasSuffix(limited, "\nAll platforms: purser manifest show acme/web:v1 --limit 0\n") || strings.Contains(limited, "arm64") || !strings.Contains(limited, "attestation (BuildKit)") {
		t.Errorf("one platform of two is\n%s", limited)
	}
	var tree treeNode
	if err := json.Unmarshal([]byte(o.ok("", "manifest", "show", "acme/web:v1", "-o", "json")), &tree); err != nil {
		t.Fatal(err)
	}
	if len(tree.Manifests) != 2 || tree.Manifests[0].Attestations[0].Digest != digests["attestation"] || len(tree.Manifests[1].Referrers) != 5 || !tree.Manifests[1].MoreReferrers ||
		tree.Referrers[0].Referrers[0].ArtifactType != "text/x-notes" || tree.Attached[0].Digest != digests["tag"] {
		t.Errorf("the tree is %+v", tree)
	}
	simple := root.Put(t, "acme/web", "v2", root.Simple(t, "acme/web", "alone", nil))
	if show := o.ok("", "tag", "show", "acme/web:v2"); strings.Contains(show, "MANIFEST") {
		t.Errorf("an image with nothing attached has a tree:\n%s", show)
	}
	if alone := o.ok("", "manifest", "show", "acme/web:v2"); strings.Count(alone, "\n") != 2 || !strings.Contains(alone, short(simple.String())) {
		t.Errorf("it is\n%s", alone)
	}
	o.fails("like library/app:v1 or library/app@sha256:", 2, "", "manifest", "show", "acme/web")
	o.fails("none", 3, "", "manifest", "show", "acme/web:none")
}
