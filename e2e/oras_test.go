package e2e

import (
	"errors"
	"slices"
	"testing"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/content/memory"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry/remote"
)

const testArtifact = "application/vnd.example.artifact"

func orasRepository(t testing.TB, r *registry, name string) *remote.Repository {
	t.Helper()
	repo, err := remote.NewRepository(r.host + "/" + name)
	if err != nil {
		t.Fatal(err)
	}
	repo.PlainHTTP = true
	repo.TagListPageSize, repo.ReferrerListPageSize = 2, 2 // so that Link is followed
	// oras must use the referrers API. It must not fall back to the referrers tag, since the
	// test has to fail if the registry doesn't have the API.
	if err := repo.SetReferrersCapability(true); err != nil {
		t.Fatal(err)
	}
	return repo
}

// pack pushes a manifest with the given subject and one layer, whose content is `text`.
func pack(t testing.TB, to content.Pusher, artifactType, text string, subject *v1.Descriptor) v1.Descriptor {
	t.Helper()
	layer, err := oras.PushBytes(t.Context(), to, "text/plain", []byte(text))
	if err != nil && !errors.Is(err, errdef.ErrAlreadyExists) {
		t.Fatalf("pushing a layer: %v", err)
	}
	desc, err := oras.PackManifest(t.Context(), to, oras.PackManifestVersion1_1, artifactType,
		oras.PackManifestOptions{Subject: subject, Layers: []v1.Descriptor{layer}})
	if err != nil {
		t.Fatalf("pushing a manifest: %v", err)
	}
	return desc
}

func TestORAS(t *testing.T) {
	begin(t)
	r := startRegistry(t, options{})
	repo, store, ctx := orasRepository(t, r, "oras/app"), memory.New(), t.Context()
	desc := pack(t, store, testArtifact, "hello", nil)
	for _, tag := range []string{"a", "b", "c", "d", "e"} {
		if err := store.Tag(ctx, desc, tag); err != nil {
			t.Fatal(err)
		}
		if _, err := oras.Copy(ctx, store, tag, repo, "", oras.DefaultCopyOptions); err != nil {
			t.Fatalf("oras.Copy to the registry: %v", err)
		}
	}
	r.API().checkWhole(t, "oras/app", "c", desc.Digest.String())

	var tags []string
	err := repo.Tags(ctx, "", func(page []string) error { tags = append(tags, page...); return nil })
	if err != nil || !slices.Equal(tags, []string{"a", "b", "c", "d", "e"}) {
		t.Errorf("tags in pages of 2: %q (%v), want a to e", tags, err)
	}
	pulled := memory.New()
	if got, err := oras.Copy(ctx, repo, desc.Digest.String(), pulled, "", oras.DefaultCopyOptions); err != nil {
		t.Errorf("oras.Copy from the registry: %v", err)
	} else if got.Digest != desc.Digest {
		t.Errorf("oras.Copy from the registry: %s, want %s", got.Digest, desc.Digest)
	}

	if err := repo.Delete(ctx, desc); err != nil {
		t.Fatalf("deleting the manifest: %v", err)
	}
	if _, err := repo.Resolve(ctx, "a"); !errors.Is(err, errdef.ErrNotFound) {
		t.Errorf("resolving a tag of a deleted manifest: %v, want not found", err)
	}
}

func TestORASReferrers(t *testing.T) {
	begin(t)
	r := startRegistry(t, options{})
	repo, ctx := orasRepository(t, r, "oras/subject"), t.Context()
	subject := pack(t, repo, testArtifact, "the subject", nil)
	attached := map[string][]digest.Digest{}
	for _, text := range []string{"one", "two", "three"} {
		for _, kind := range []string{"application/vnd.example.sbom", "application/vnd.example.signature"} {
			desc := pack(t, repo, kind, text, &subject)
			attached[kind] = append(attached[kind], desc.Digest)
			attached[""] = append(attached[""], desc.Digest)
		}
	}
	for kind, want := range attached {
		var got []digest.Digest
		err := repo.Referrers(ctx, subject, kind, func(page []v1.Descriptor) error {
			for _, desc := range page {
				got = append(got, desc.Digest)
				if kind != "" && desc.ArtifactType != kind {
					t.Errorf("a referrer of type %q among those of %q", desc.ArtifactType, kind)
				}
			}
			return nil
		})
		slices.Sort(got)
		slices.Sort(want)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("referrers of type %q: %q (%v), want %q", kind, got, err, want)
		}
	}
	// oras copies the manifest with all its referrers to another repository.
	other := orasRepository(t, r, "oras/graph")
	if err := oras.ExtendedCopyGraph(ctx, repo, other, subject, oras.DefaultExtendedCopyGraphOptions); err != nil {
		t.Fatalf("copying the graph: %v", err)
	}
	for _, d := range attached[""] {
		r.API().checkWhole(t, "oras/graph", d.String(), d.String())
	}
}
