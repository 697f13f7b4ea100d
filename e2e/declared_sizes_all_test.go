//go:build all

package e2e

import (
	"bytes"
	"encoding/json"
	"io"
	"log"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	foreign "github.com/google/go-containerregistry/pkg/registry"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content/memory"
	"oras.land/oras-go/v2/registry/remote"
)

// otherRegistry starts a registry of another vendor, which doesn't check the sizes that
// manifests declare. It returns the registry's HOST:PORT.
func otherRegistry(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(foreign.New(foreign.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

// putLying changes the size that the manifest declares for its first layer to `size`, puts the
// manifest under the tag v1, and returns its digest.
func putLying(t *testing.T, host, repo, manifest string, size int64) string {
	t.Helper()
	var m v1.Manifest
	if err := json.Unmarshal([]byte(manifest), &m); err != nil {
		t.Fatal(err)
	}
	m.Layers[0].Size = size
	body, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://"+host+"/v2/"+repo+"/manifests/v1", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", m.MediaType)
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close() //nolint:errcheck // only its status matters
	if answer.StatusCode != http.StatusCreated {
		t.Fatalf("the other registry answers %s", answer.Status)
	}
	return digest.FromBytes(body).String()
}

// Images declare wrong sizes of their layers: too small, too large or the largest possible
// number. The test expects that skopeo, which doesn't compare sizes, copies them from another
// registry to Purser and back. crane and oras compare the sizes of what they pull, from any
// registry; they must be able to copy such an image if the target has its layers already.
func TestClientsMoveImagesWithWrongSizes(t *testing.T) {
	beginOwn(t)
	r, crane, skopeo := startRegistry(t, options{}), toolClient(t, "crane"), skopeo(t)
	for name, size := range map[string]int64{"empty": 0, "short": 9, "long": 200_000, "huge": math.MaxInt64} {
		t.Run(name, func(t *testing.T) {
			from, to := otherRegistry(t), otherRegistry(t)
			crane.Run("push", writeImage(t, newImage(t, 2, 64<<10), "right"), from+"/app:right")
			lying := putLying(t, from, "app", crane.Run("manifest", from+"/app:right"), size)
			arrived := func(host, repo, reference string) {
				t.Helper()
				if got := crane.Run("digest", host+"/"+repo+":"+reference); got != lying {
					t.Errorf("%s:%s is %s, want %s", repo, reference, got, lying)
				}
			}

			copied := []string{"copy", "--preserve-digests", "--src-tls-verify=false", "--dest-tls-verify=false"}
			skopeo.Run(append(copied, "docker://"+from+"/app:v1", "docker://"+r.Ref(name+"/skopeo", "v1"))...)
			arrived(r.host, name+"/skopeo", "v1")
			skopeo.Run(append(copied, "docker://"+r.Ref(name+"/skopeo", "v1"), "docker://"+to+"/app:v1")...)
			arrived(to, "app", "v1")

			crane.Refused("copy", from+"/app:v1", r.Ref(name+"/crane", "v1"))
			crane.Run("copy", from+"/app:right", r.Ref(name+"/crane", "right"))
			crane.Run("copy", from+"/app:v1", r.Ref(name+"/crane", "v1"))
			arrived(r.host, name+"/crane", "v1")
			crane.Run("copy", r.Ref(name+"/crane", "v1"), r.Ref(name+"/mounted", "v1"))
			arrived(r.host, name+"/mounted", "v1")
			crane.Run("copy", r.Ref(name+"/crane", "v1"), to+"/app:again")
			arrived(to, "app", "again")

			source, err := remote.NewRepository(from + "/app")
			if err != nil {
				t.Fatal(err)
			}
			source.PlainHTTP = true
			if _, err := oras.Copy(t.Context(), source, "v1", orasRepository(t, r, name+"/crane"), "oras", oras.DefaultCopyOptions); err != nil {
				t.Errorf("oras.Copy to where the layers are: %v", err)
			}
			arrived(r.host, name+"/crane", "oras")
			if _, err := oras.Copy(t.Context(), orasRepository(t, r, name+"/crane"), "v1", memory.New(), "", oras.DefaultCopyOptions); err == nil {
				t.Error("oras pulls a layer of another size than is declared: docs/checking.md says otherwise")
			}
		})
	}
	findings := checkFindings(t, r.opt.dataDir, 0, "--repair")
	wantFindings(t, findings, strings.Split(strings.Repeat("declared-size ,", 11)+"declared-size ", ",")...)
}
