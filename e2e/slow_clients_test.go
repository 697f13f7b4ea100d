//go:build e2e_all

package e2e

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestHelm(t *testing.T) {
	begin(t)
	r, helm := startRegistry(t, options{}), toolClient(t, "helm")
	dir := newDir(t)
	helm.Run("create", filepath.Join(dir, "demo"))
	helm.Run("package", filepath.Join(dir, "demo"), "--version", "1.2.3", "--destination", dir)
	out, err := helm.Try("", "push", filepath.Join(dir, "demo-1.2.3.tgz"), "oci://"+r.host+"/charts", "--plain-http")
	if err != nil {
		t.Fatal(err)
	}
	text, digest, err := r.API().manifest(t.Context(), "charts/demo", "1.2.3")
	if err != nil {
		t.Fatalf("the chart isn't there (helm printed %q): %v", out, err)
	}
	if !strings.Contains(string(text), "application/vnd.cncf.helm.config.v1+json") {
		t.Errorf("the manifest is no chart's: %s", text)
	}
	r.API().checkWhole(t, "charts/demo", "1.2.3", digest.String())
	helm.Run("pull", "oci://"+r.host+"/charts/demo", "--version", "1.2.3", "--plain-http", "--destination", newDir(t))
	if out := helm.Run("show", "chart", "oci://"+r.host+"/charts/demo", "--plain-http"); !strings.Contains(out, "name: demo") {
		t.Errorf("helm show chart of the newest version: %s", out)
	}
}

func TestCosign(t *testing.T) {
	begin(t)
	r, cosign, crane := startRegistry(t, options{}), toolClient(t, "cosign"), toolClient(t, "crane")
	cosign.env = append(cosign.env, "COSIGN_PASSWORD=")
	img := newImage(t, 1, 4<<10)
	digest := digestOf(t, img)
	ref := r.Ref("signed/app", digest)
	crane.Run("push", writeImage(t, img, "v1"), r.Ref("signed/app", "v1"))

	keys := filepath.Join(newDir(t), "key")
	cosign.Run("generate-key-pair", "--output-key-prefix", keys)
	cosign.Run("sign", "--yes", "--key", keys+".key", "--tlog-upload=false", "--allow-http-registry", ref)
	cosign.Run("verify", "--key", keys+".pub", "--insecure-ignore-tlog=true", "--allow-http-registry", ref)

	predicate := writeFile(t, "predicate.json", `{"builder":{"id":"https://example.com"}}`)
	cosign.Run("attest", "--yes", "--key", keys+".key", "--tlog-upload=false", "--allow-http-registry",
		"--predicate", predicate, "--type", "custom", ref)
	cosign.Run("verify-attestation", "--key", keys+".pub", "--insecure-ignore-tlog=true", "--allow-http-registry",
		"--type", "custom", ref)

	unsigned := newImage(t, 1, 4<<10)
	crane.Run("push", writeImage(t, unsigned, "v2"), r.Ref("signed/app", "v2"))
	cosign.Refused("verify", "--key", keys+".pub", "--insecure-ignore-tlog=true", "--allow-http-registry",
		r.Ref("signed/app", digestOf(t, unsigned)))
}
