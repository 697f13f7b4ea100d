//go:build all

package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"
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

// TestHelmLogsIn: helm logs in with a password and a robot's secret, pushes, pulls and lists
// versions, and says why it is refused.
func TestHelmLogsIn(t *testing.T) {
	r, robotSecret := startClosed(t)
	dir := newDir(t)
	chart, newHelm := filepath.Join(dir, "demo-1.2.3.tgz"), func() *client { return toolClient(t, "helm") }
	login := func(helm *client, name, secret string) error {
		return helm.run("registry", "login", r.host, "--plain-http", "-u", name, "-p", secret)
	}
	push := func(helm *client, to string) error {
		return helm.run("push", chart, "oci://"+r.host+"/"+to, "--plain-http")
	}
	pull := func(helm *client, from string) error {
		return helm.run("pull", "oci://"+r.host+"/"+from+"/demo", "--version", "1.2.3", "--plain-http", "--destination", newDir(t))
	}
	nobody := newHelm()
	nobody.Run("create", filepath.Join(dir, "demo"))
	nobody.Run("package", filepath.Join(dir, "demo"), "--version", "1.2.3", "--destination", dir)
	for i, account := range []string{"writer", "acme+ci", "$token"} {
		helm, secret, to := newHelm(), robotSecret, fmt.Sprintf("acme/charts-%d", i)
		if i == 0 {
			secret = accountPassword
		}
		wants(t, account+" logs in", login(helm, account, secret))
		wants(t, account+" pushes", push(helm, to))
		wants(t, account+" pulls", pull(helm, to))
		if out := helm.Run("show", "chart", "oci://"+r.host+"/"+to+"/demo", "--plain-http"); !strings.Contains(out, "version: 1.2.3") {
			t.Errorf("helm show chart of the newest version: %s", out)
		}
	}
	fails(t, "a push without credentials", push(nobody, "acme/charts-0"), notLoggedIn...)
	fails(t, "a pull without credentials", pull(nobody, "acme/charts-0"), notLoggedIn...)
	fails(t, "a wrong password", login(newHelm(), "writer", "wrong password"), notLoggedIn...)
	reader := newHelm()
	wants(t, "reader logs in", login(reader, "reader", accountPassword))
	wants(t, "reader pulls", pull(reader, "acme/charts-0"))
	fails(t, "a reader's push", push(reader, "acme/charts-0"), "reader may not do this")
	publish(t, r, "acme/charts-0/demo")
	eventually(t, 30*time.Second, func() error { return pull(nobody, "acme/charts-0") })
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
