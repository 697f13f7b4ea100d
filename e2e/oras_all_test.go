//go:build all

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content/memory"
)

// oras reads at most 4 MiB of each page of the list of referrers. The test expects that oras
// sees every referrer nevertheless, even if the referrers' annotations are long and consist of
// characters that JSON encodes in six bytes each.
func TestORASSeesEveryReferrer(t *testing.T) {
	begin(t)
	r := startRegistry(t, options{})
	repo, ctx := orasRepository(t, r, "oras/hidden"), t.Context()
	repo.ReferrerListPageSize = 0
	subject := pack(t, repo, testArtifact, "the subject", nil)
	var want []digest.Digest
	for i := range 60 {
		n := 60 << 10
		if i%10 == 5 {
			n = 600 << 10
		}
		desc, err := oras.PackManifest(ctx, repo, oras.PackManifestVersion1_1, "application/vnd.example.signature",
			oras.PackManifestOptions{Subject: &subject, ManifestAnnotations: map[string]string{"n": fmt.Sprint(i), "long": strings.Repeat("<", n)}})
		if err != nil {
			t.Fatalf("pushing a referrer: %v", err)
		}
		want = append(want, desc.Digest)
	}
	var got []digest.Digest
	err := repo.Referrers(ctx, subject, "", func(page []v1.Descriptor) error {
		for _, desc := range page {
			got = append(got, desc.Digest)
		}
		return nil
	})
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("oras sees %d of %d referrers: %v", len(got), len(want), err)
	}
}

func TestORASMountsAndSHA512(t *testing.T) {
	begin(t)
	r := startRegistry(t, options{})
	from, to, ctx := orasRepository(t, r, "oras/from"), orasRepository(t, r, "oras/to"), t.Context()
	text := randomBytes(100 << 10)
	layer := v1.Descriptor{MediaType: v1.MediaTypeImageLayer, Digest: digest.SHA512.FromBytes(text), Size: int64(len(text))}
	if err := from.Push(ctx, layer, bytes.NewReader(text)); err != nil {
		t.Fatalf("pushing a sha512 blob: %v", err)
	}
	mounted := true
	err := to.Mount(ctx, layer, "oras/from", func() (io.ReadCloser, error) {
		mounted = false
		return io.NopCloser(bytes.NewReader(text)), nil
	})
	if err != nil || !mounted {
		t.Errorf("mounting a blob: mounted is %v, error %v", mounted, err)
	}

	config, err := oras.PushBytes(ctx, to, v1.MediaTypeEmptyJSON, []byte("{}"))
	if err != nil {
		t.Fatalf("pushing the configuration: %v", err)
	}
	manifest := v1.Manifest{MediaType: v1.MediaTypeImageManifest, ArtifactType: testArtifact, Config: config, Layers: []v1.Descriptor{layer}}
	manifest.SchemaVersion = 2
	body, err := json.Marshal(manifest)
	if err != nil {
		t.Fatal(err)
	}
	desc := v1.Descriptor{MediaType: manifest.MediaType, Digest: digest.SHA512.FromBytes(body), Size: int64(len(body))}
	if err := to.Push(ctx, desc, bytes.NewReader(body)); err != nil {
		t.Fatalf("pushing a manifest by its sha512: %v", err)
	}
	if _, err := oras.Copy(ctx, to, desc.Digest.String(), memory.New(), "", oras.DefaultCopyOptions); err != nil {
		t.Errorf("pulling by sha512: %v", err)
	}
	r.API().checkWhole(t, "oras/to", desc.Digest.String(), desc.Digest.String())
}
