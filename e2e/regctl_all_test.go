//go:build all

package e2e

import (
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
)

func TestRegctlReferrers(t *testing.T) {
	begin(t)
	r := startRegistry(t, options{})
	regctl := regctl(t, r)
	img := newImage(t, 1, 4<<10)
	ref := r.Ref("regctl/subject", "v1")
	regctl.Run("image", "copy", "ocidir://"+writeImage(t, img, "v1")+":v1", ref)

	put := func(kind, content string) string {
		return regctl.RunInput(content, "artifact", "put", "--artifact-type", kind, "--subject", ref,
			"--format", "{{println .Manifest.GetDescriptor.Digest}}")
	}
	sbom, signature := put("application/spdx+json", "an SBOM"), put("application/vnd.example.signature", "a signature")
	list := func(args ...string) []string {
		return lines(regctl.Run(append([]string{"artifact", "list", ref,
			"--format", "{{range .Descriptors}}{{println .Digest}}{{end}}"}, args...)...))
	}
	got, want := list(), []string{sbom, signature}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("referrers: %q, want %q", got, want)
	}
	if got := list("--filter-artifact-type", "application/spdx+json"); !slices.Equal(got, []string{sbom}) {
		t.Errorf("referrers that are SBOMs: %q, want %s", got, sbom)
	}
	// If the registry didn't have the referrers API, regctl would write the referrers into a
	// tag. So v1 must be the only tag.
	if got := lines(regctl.Run("tag", "ls", r.host+"/regctl/subject")); !slices.Equal(got, []string{"v1"}) {
		t.Errorf("tags: %q, want v1 alone", got)
	}
	regctl.Run("manifest", "delete", r.Ref("regctl/subject", sbom))
	if got := list(); !slices.Equal(got, []string{signature}) {
		t.Errorf("referrers after one was deleted: %q, want %s", got, signature)
	}
}

func TestRegctlSHA512(t *testing.T) {
	begin(t)
	r := startRegistry(t, options{})
	regctl := regctl(t, r)
	ref, strong := r.Ref("regctl/strong", "sha256"), r.Ref("regctl/strong", "sha512")
	regctl.Run("image", "copy", "ocidir://"+writeImage(t, newImage(t, 2, 16<<10), "v1")+":v1", ref)
	regctl.Run("image", "mod", ref, "--create", strong, "--digest-algo", "sha512")

	text, _, err := r.API().manifest(t.Context(), "regctl/strong", "sha512")
	if err != nil {
		t.Fatal(err)
	}
	want := digest.SHA512.FromBytes(text)
	r.API().checkWhole(t, "regctl/strong", want.String(), want.String())
	if got := strings.Count(string(text), "sha512:"); got != 3 {
		t.Errorf("the manifest names %d sha512 digests, want 3:\n%s", got, text)
	}
	regctl.Run("image", "copy", r.Ref("regctl/strong", want.String()), "ocidir://"+newDir(t)+"/pulled:v1")
}
