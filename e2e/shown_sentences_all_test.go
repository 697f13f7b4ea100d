//go:build all

package e2e

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

var inSentence = regexp.MustCompile("`((?:crane|skopeo|regctl|ctr) [^`]*)`")

// sentences returns the commands of clients in the sentences of a page's section; "" is the whole
// page.
func sentences(t *testing.T, page, section string) (found []string) {
	t.Helper()
	text, err := os.ReadFile("../" + page)
	if err != nil {
		t.Fatal(err)
	}
	part := string(text)
	if section != "" {
		_, part, _ = strings.Cut(part, "\n## "+section+"\n")
		part, _, _ = strings.Cut(part, "\n## ")
	}
	for _, m := range inSentence.FindAllStringSubmatch(part, -1) {
		found = append(found, m[1])
	}
	return found
}

// TestShownByGarbageCollection: the commands in sentences about deletion.
func TestShownByGarbageCollection(t *testing.T) {
	beginOwn(t)
	s := newShown(t, "http")
	s.tool("crane")
	img := newImage(t, 1, 4<<10)
	s.run("crane push " + writeImage(t, img, "v1") + " " + s.r.Ref("app", "v2"))
	example := strings.NewReplacer("registry/", s.r.host+"/", "sha256:…", digestOf(t, img))
	found := sentences(t, "docs/garbage-collection.md", "")
	if len(found) != 2 {
		t.Fatalf("%q", found)
	}
	s.run(example.Replace(found[1])) // makes the tag
	s.run(example.Replace(found[0])) // deletes it
	if err := s.try(newDir(t), "crane digest "+s.r.Ref("app", "v1")); err == nil {
		t.Error("the tag is still there")
	}
}

// TestShownSparseIndexes: the commands of which the documentation says that they push sparse indexes
// do that: the registry refuses what they push, unless its setting allows it.
func TestShownSparseIndexes(t *testing.T) {
	beginOwn(t)
	var index v1.ImageIndex = empty.Index
	for _, arch := range []string{"amd64", "arm64"} {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: newImage(t, 1, 4<<10),
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}}})
	}
	dir := newDir(t)
	path, err := layout.Write(dir, empty.Index)
	if err == nil {
		err = path.AppendIndex(index, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": "v1"}))
	}
	if err != nil {
		t.Fatal(err)
	}
	commands := sentences(t, "docs/clients.md", "Sparse indexes")
	if len(commands) != 2 {
		t.Fatalf("%q", commands)
	}
	for name, env := range map[string]string{"refused": "PURSER_AUTH_ENABLED=false", "allowed": "PURSER_MANIFESTS_SPARSE_INDEXES=true"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShown(t, "http", env, "PURSER_AUTH_ENABLED=false")
			s.tool("regctl")
			for _, c := range commands {
				client, _, _ := strings.Cut(c, " ")
				switch client {
				case "skopeo":
					c += " --dest-tls-verify=false oci:" + dir + ":v1 docker://" + s.r.Ref("mirror/skopeo", "v1")
				case "regctl":
					c = strings.Replace(c, "regctl ", "regctl --host reg="+s.r.host+",tls=disabled ", 1) + " ocidir://" + dir + ":v1 " + s.r.Ref("mirror/regctl", "v1")
				}
				err := s.try(newDir(t), c)
				if name == "allowed" && err != nil {
					t.Error(err)
				}
				if name == "refused" && (err == nil || !strings.Contains(err.Error(), "MANIFEST_BLOB_UNKNOWN") && !strings.Contains(err.Error(), "manifest blob unknown") && !strings.Contains(err.Error(), "404") && !strings.Contains(err.Error(), "400")) {
					t.Errorf("%s: %v", c, err)
				}
			}
		})
	}
}
