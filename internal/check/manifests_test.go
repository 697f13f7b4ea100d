package check_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/check"
	"github.com/purser-registry/purser/internal/oci"
)

// put stores a manifest in the repository team/app and returns its digest and size.
func (b *storeBundle) put(mediaType, format string, args ...any) (oci.Digest, int64) {
	b.t.Helper()
	payload := fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":%q,`+format+`}`, append([]any{mediaType}, args...)...)
	m, err := oci.ParseManifest(mediaType, payload)
	if err != nil {
		b.t.Fatal(err)
	}
	d := oci.Compute(oci.SHA256, payload)
	if err := b.catalog.PutManifest(b.t.Context(), catalog.NewManifest{Repository: "team/app", Digest: d, Manifest: m, Payload: payload}); err != nil {
		b.t.Fatal(err)
	}
	return d, int64(len(payload))
}

// Four manifests declare wrong sizes. A check must report each of them once, as a note, and
// change nothing, even with Repair. The check must count as successful.
func TestCheckNotesDeclaredSizes(t *testing.T) {
	t.Parallel()
	b := setupStore(t)
	config, layer := b.push("{}"), b.push("layer")
	const huge, descriptor = int64(math.MaxInt64), `{"mediaType":%q,"digest":%q,"size":%d}`
	image := func(configSize, layerSize int64) (oci.Digest, int64) {
		return b.put(oci.MediaTypeImageManifest, `"config":`+descriptor+`,"layers":[`+descriptor+`]`,
			"application/vnd.oci.image.config.v1+json", config.Digest, configSize,
			"application/vnd.oci.image.layer.v1.tar", layer.Digest, layerSize)
	}
	index := func(child oci.Digest, childSize int64, subject oci.Digest, subjectSize int64) oci.Digest {
		d, _ := b.put(oci.MediaTypeImageIndex, `"manifests":[`+descriptor+`],"subject":`+descriptor,
			oci.MediaTypeImageManifest, child, childSize, oci.MediaTypeImageManifest, subject, subjectSize)
		return d
	}
	right, size := image(2, 5)
	index(right, size, right, size)
	if report := b.finds(check.Options{}); report.Manifests != 2 || report.UnreadableManifests != 0 {
		t.Fatalf("nothing is wrong: %+v", report)
	}
	type noted struct {
		manifest oci.Digest
		check.Contradiction
	}
	layers, _ := image(2, huge)
	both, _ := image(3, 0)
	want := []noted{
		{layers, check.Contradiction{Descriptor: "layers[0]", Digest: layer.Digest, Declared: huge, Stored: 5}},
		{both, check.Contradiction{Descriptor: "config", Digest: config.Digest, Declared: 3, Stored: 2, Others: 1}},
		{index(right, huge, right, size), check.Contradiction{Descriptor: "manifests[0]", Digest: right, Declared: huge, Stored: size}},
		{index(right, size, right, huge), check.Contradiction{Descriptor: "subject", Digest: right, Declared: huge, Stored: size}},
	}
	for _, o := range []check.Options{{}, {Deep: true, Repair: true, Force: true}, {}} {
		var got []noted
		o.Catalog, o.Store = b.catalog, b.store
		o.Found = func(f check.Finding) {
			if f.Problem != check.DeclaredSize || f.Repaired || !slices.Equal(f.Repositories, []string{"team/app"}) || f.Detail == "" {
				t.Errorf("found %+v", f)
				return
			}
			n := noted{f.Digest, *f.Contradiction}
			n.Repository, n.Manifest = "", oci.Digest{}
			got = append(got, n)
		}
		report, err := check.Run(t.Context(), o)
		if err != nil || report.Remaining() || report.Manifests != 6 || report.Problems[check.DeclaredSize] == nil ||
			*report.Problems[check.DeclaredSize] != (check.Tally{Count: 4}) || len(report.Problems) != 1 {
			t.Errorf("report: %+v, %v", report, err)
		}
		if !slices.Equal(got, want) { // in the order in which they were put
			t.Errorf("noted:\n%+v\nwant:\n%+v", got, want)
		}
	}
	if n := b.doomed(); n != 0 {
		t.Errorf("%d objects are doomed", n)
	}
}
