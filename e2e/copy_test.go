package e2e

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/purser-registry/purser/internal/db/dbtest"
)

// TestCopy: "purser copy" mirrors what is selected of another registry, with what is attached to it,
// and the next run copies only what is new.
func TestCopy(t *testing.T) {
	to, secret := startClosed(t)
	from := startRegistry(t, options{env: []string{"PURSER_DATABASE_MAIN=" + dbtest.EmptyDSN(t)}})
	crane := toolClient(t, "crane")
	img, index := newImage(t, 2, 1<<10), newIndex(t, "amd64", "arm64")
	crane.Run("push", writeImage(t, img, "v1"), from.Ref("team/app", "v1"))
	crane.Run("push", "--index", writeIndex(t, index, "v2"), from.Ref("team/app", "v2"))
	crane.Run("push", writeImage(t, newImage(t, 1, 1<<10), "nightly"), from.Ref("team/app", "nightly"))
	platforms, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	platform, err := index.Image(platforms.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	attachedTag := func(to v1.Image) string { return "sha256-" + strings.TrimPrefix(digestOf(t, to), "sha256:") + ".sig" }
	for _, tag := range []string{attachedTag(img), attachedTag(platform), "sha256-" + strings.Repeat("0", 64) + ".sig"} {
		crane.Run("push", writeImage(t, newImage(t, 1, 100), tag), from.Ref("team/app", tag))
	}
	crane.Run("push", writeImage(t, newImage(t, 1, 1<<10), "latest"), from.Ref("team/deep/tool", "latest"))
	crane.Run("push", writeImage(t, newImage(t, 1, 1<<10), "latest"), from.Ref("other/thing", "latest"))
	attach := func(subject v1.Image, text string) string {
		t.Helper()
		d, err := partial.Descriptor(subject)
		if err != nil {
			t.Fatal(err)
		}
		referrer := mutate.Subject(mutate.Annotations(newImage(t, 1, 100), map[string]string{"text": text}).(v1.Image), *d).(v1.Image)
		ref, err := name.NewDigest(from.host + "/team/app@" + digestOf(t, referrer))
		if err != nil {
			t.Fatal(err)
		}
		if err := remote.Write(ref, referrer); err != nil {
			t.Fatal(err)
		}
		return digestOf(t, referrer)
	}
	first := attach(img, "a signature")
	ofPlatform := attach(platform, "a signature of one platform")

	run := func(args ...string) (code int, sum struct{ Repositories, Copied, Up_to_date, Attached, Failed int }) {
		t.Helper()
		code, out := purser(t, []string{"PURSER_SERVER=" + to.URL(), "PURSER_TOKEN=" + secret}, append([]string{"copy", "-o", "json"}, args...)...)
		if i := strings.Index(out, "{"); i < 0 || json.Unmarshal([]byte(out[i:]), &sum) != nil {
			t.Fatalf("purser copy %v: exit code %d: %s", args, code, out)
		}
		return code, sum
	}
	app := from.host + "/team/app"
	if code, sum := run(app, "acme/mirrored", "--tags", "^v", "--dry-run"); code != 0 || sum.Copied != 4 {
		t.Errorf("a dry run: exit code %d, %+v, want 4 tags", code, sum)
	}
	if code, sum := run(app, "acme/mirrored", "--tags", "^v"); code != 0 || sum.Copied != 4 || sum.Attached != 2 || sum.Failed != 0 {
		t.Errorf("the first copy: exit code %d, %+v, want 4 tags and 2 attached manifests", code, sum)
	}
	crane.Run("auth", "login", to.host, "-u", "admin", "-p", accountPassword)
	tags := strings.Fields(crane.Run("ls", to.Ref("acme/mirrored", "")[:len(to.Ref("acme/mirrored", ""))-1]))
	want := []string{attachedTag(img), attachedTag(platform), "v1", "v2"}
	slices.Sort(want)
	if !slices.Equal(tags, want) {
		t.Errorf("tags %v, want %v", tags, want)
	}
	for _, tag := range []string{"v1", "v2"} {
		if got, want := crane.Run("digest", to.Ref("acme/mirrored", tag)), crane.Run("digest", from.Ref("team/app", tag)); got != want {
			t.Errorf("%s: %s, want %s", tag, got, want)
		}
		crane.Run("validate", "--remote", to.Ref("acme/mirrored", tag))
	}
	crane.Run("manifest", to.Ref("acme/mirrored", first))
	crane.Run("manifest", to.Ref("acme/mirrored", ofPlatform))

	second := attach(img, "another signature")
	if code, sum := run(app, "acme/mirrored", "--tags", "^v"); code != 0 || sum.Copied != 0 || sum.Up_to_date != 4 || sum.Attached != 1 {
		t.Errorf("the second copy: exit code %d, %+v, want only the new signature", code, sum)
	}
	crane.Run("manifest", to.Ref("acme/mirrored", second))

	if code, sum := run(from.host+"/team/", "acme/all", "--repositories", "deep"); code != 0 || sum.Repositories != 1 || sum.Copied != 1 {
		t.Errorf("a prefix: exit code %d, %+v", code, sum)
	}
	crane.Run("manifest", to.Ref("acme/all/team/deep/tool", "latest"))

	// A blob that is gone at the source fails its tag alone.
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	lost, err := layers[0].Digest()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(objectFiles(t, from.opt.dataDir)[lost.String()]); err != nil {
		t.Fatal(err)
	}
	if code, sum := run(app, "acme/again", "--tags", "^(v1|nightly)$", "--no-referrers"); code != 1 || sum.Failed != 1 || sum.Copied < 1 {
		t.Errorf("with a lost blob: exit code %d, %+v, want one failure", code, sum)
	}
	crane.Refused("manifest", to.Ref("acme/again", "v1"))
	crane.Run("manifest", to.Ref("acme/again", "nightly"))

	for _, c := range [][]string{{"copy", from.host + "/no/such"}, {"copy", from.host + "/nothing/"}, {"copy", "http://" + from.host}, {"copy", app, "--tags", "("}} {
		if code, out := purser(t, []string{"PURSER_SERVER=" + to.URL()}, c...); code == 0 {
			t.Errorf("purser %s: %s", strings.Join(c, " "), out)
		}
	}
}
