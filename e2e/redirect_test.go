package e2e

import (
	"net/http"
	"strings"
	"testing"
)

// The registry redirects clients to the store. The test expects that they get blobs from the
// S3 server itself.
func TestRedirectsToS3(t *testing.T) {
	begin(t)
	env := append(startS3(t), "PURSER_STORAGE_S3_REDIRECT=true")
	r, crane := startRegistry(t, options{env: env}), toolClient(t, "crane")
	if r.p == nil {
		t.Skip("the target's storage is its own")
	}
	img := newImage(t, 2, 256<<10)
	digest := digestOf(t, img)
	crane.Run("push", writeImage(t, img, "v1"), r.Ref("app", "v1"))
	crane.Run("validate", "--remote", r.Ref("app", digest))

	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	layer, err := layers[0].Digest()
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.Get(r.URL() + "/v2/app/blobs/" + layer.String())
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if to := res.Header.Get("Location"); res.StatusCode != http.StatusTemporaryRedirect || !strings.Contains(to, "X-Amz-Signature") {
		t.Errorf("GET of a blob: %s to %q, want a signed redirect", res.Status, to)
	}
}
