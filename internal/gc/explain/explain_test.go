package explain_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/gc/explain"
	"github.com/purser-registry/purser/internal/oci"
)

// explainManifest returns the explanation of a manifest. It fails the test if the manifest
// doesn't exist or its fate isn't `want`.
func (b bundle) explainManifest(t *testing.T, path string, d oci.Digest, want explain.Fate) explain.ManifestExplanation {
	t.Helper()
	e, err := b.ExplainManifest(t.Context(), path, d)
	if err != nil {
		t.Fatal(err)
	}
	if e.Fate != want {
		t.Errorf("fate %q, want %q: %q", e.Fate, want, e.Sentences())
	}
	return e
}

func (b bundle) explainBlob(t *testing.T, d oci.Digest, want explain.Fate) explain.BlobExplanation {
	t.Helper()
	e, err := b.ExplainBlob(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	if e.Fate != want {
		t.Errorf("fate %q, want %q: %q", e.Fate, want, e.Sentences())
	}
	return e
}

// says fails the test if the sentences in `got`, with each time in them replaced by TIME,
// differ from `want`.
func says(t *testing.T, got []string, want ...string) {
	t.Helper()
	text := regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`).ReplaceAllString(strings.Join(got, "\n"), "TIME")
	if text != strings.Join(want, "\n") {
		t.Errorf("it says\n%s\nwant\n%s", text, strings.Join(want, "\n"))
	}
}

const unplannedKept = "no review is planned; it will be reviewed when something that refers to it is deleted"

func TestExplainTaggedManifest(t *testing.T) { catalogtest.AtBoth(t, testExplainTaggedManifest) }

func testExplainTaggedManifest(t *testing.T, dsn string) {
	b := replica(t, dsn)
	config := b.Push(t, "library/app", "config")
	d := b.Put(t, "library/app", catalogtest.Image(t, config, nil, nil), "v1")
	b.Push(t, "library/other", "config")
	b.Put(t, "library/other", catalogtest.Image(t, config, nil, nil), "elsewhere")
	e := b.explainManifest(t, "library/app", d, explain.FateKept)
	says(t, e.Sentences(), "kept: tag v1 of library/app points to it", unplannedKept)
	if e.MediaType != oci.MediaTypeImageManifest || e.Size == 0 || e.Review != nil {
		t.Errorf("got %+v", e)
	}
	var tags []string
	for i := range 12 {
		tags = append(tags, fmt.Sprintf("t%02d", i))
	}
	b.Put(t, "library/app", catalogtest.Image(t, config, nil, nil), tags...)
	e = b.explainManifest(t, "library/app", d, explain.FateKept)
	if !slices.Equal(e.Tags.First, tags[:10]) || e.Tags.Total != exact(13) {
		t.Errorf("tags %+v, want the first ten of 13", e.Tags)
	}
	if got, want := e.Sentences()[0], "kept: tags t00, t01, t02, t03, t04, t05, t06, t07, t08, t09 and 3 more of library/app point to it"; got != want {
		t.Errorf("it says %q, want %q", got, want)
	}
	if err := b.DeleteTag(t.Context(), "library/app", "t03"); err != nil {
		t.Fatal(err)
	}
	e = b.explainManifest(t, "library/app", d, explain.FateKept)
	if e.Review == nil || !strings.HasSuffix(e.Sentences()[1], ", because a tag of it was deleted; the review keeps it as long as something refers to it") {
		t.Errorf("it says %q", e.Sentences())
	}
}

func TestExplainUntaggedManifest(t *testing.T) {
	t.Parallel()
	b := setup(t)
	if err := b.SetReviewDelays(t.Context(), 0, nil); err != nil {
		t.Fatal(err)
	}
	config := b.Push(t, "library/app", "config")
	d := b.Put(t, "library/app", catalogtest.Image(t, config, nil, nil), "v1")
	if err := b.DeleteTag(t.Context(), "library/app", "v1"); err != nil {
		t.Fatal(err)
	}
	set := func(columns string) {
		t.Helper()
		b.Exec(t, "UPDATE gc_manifest_review_queue SET "+columns)
	}
	set("review_after = now() - interval '90 s'")
	e := b.explainManifest(t, "library/app", d, explain.FateDue)
	if !strings.Contains(e.Sentences()[0], "(for 1m3") {
		t.Errorf("it says %q, want for how long it is due", e.Sentences())
	}
	set("review_after = now() + interval '3 h 12 min 50 s', review_count = 2, last_error = 'no luck'")
	e = b.explainManifest(t, "library/app", d, explain.FateWaiting)
	says(t, e.Sentences(),
		"will be reviewed at TIME (in 3h12m), because a tag of it was deleted; nothing keeps it, so it will be deleted",
		"its review has failed 2 times so far; the last failure: no luck")
	set("set_aside_at = now(), review_count = 10")
	e = b.explainManifest(t, "library/app", d, explain.FateFailed)
	says(t, e.Sentences(),
		`its review, because a tag of it was deleted, failed 10 times; since TIME it is not tried again, until "purser gc retry" makes it due; nothing keeps it`,
		"the last failure: no luck")
	b.Exec(t, "DELETE FROM gc_manifest_review_queue")
	e = b.explainManifest(t, "library/app", d, explain.FateUnplanned)
	if got := e.Sentences()[0]; !strings.Contains(got, "should never happen") {
		t.Errorf("it says %q", got)
	}
}

func TestExplainIndexesAndReferrers(t *testing.T) {
	catalogtest.AtBoth(t, testExplainIndexesAndReferrers)
}

func testExplainIndexesAndReferrers(t *testing.T, dsn string) {
	b := replica(t, dsn)
	config := b.Push(t, "r", "config")
	child := b.Put(t, "r", catalogtest.Image(t, config, nil, nil))
	tagged, bare := b.Put(t, "r", catalogtest.Index(t, child), "multi", "latest"), b.Put(t, "r", catalogtest.Index(t, child, child))
	refer := func(to oci.Digest, n string) oci.Digest {
		subject := map[string]any{"mediaType": oci.MediaTypeImageIndex, "digest": to.String(), "size": 1}
		return b.Put(t, "r", catalogtest.Image(t, config, nil, map[string]any{"subject": subject, "artifactType": "application/x", "annotations": map[string]string{"n": n}}))
	}
	one, two := refer(tagged, "1"), refer(tagged, "2")
	b.Exec(t, "DELETE FROM gc_manifest_review_queue")

	e := b.explainManifest(t, "r", child, explain.FateKept)
	says(t, e.Sentences(),
		"kept: index "+tagged.String()+" of r contains it (tags latest and multi)",
		"kept: index "+bare.String()+" of r contains it (no tag)", unplannedKept)
	e = b.explainManifest(t, "r", tagged, explain.FateKept)
	says(t, e.Sentences(), "kept: tags latest and multi of r point to it", unplannedKept,
		"2 manifests refer to it: "+one.String()+" and "+two.String()+"; when it is deleted, those are reviewed",
		"it contains 1 manifest: "+child.String()+"; when it is deleted, that is reviewed")
	e = b.explainManifest(t, "r", two, explain.FateKept)
	says(t, e.Sentences(), "kept: its subject "+tagged.String()+" is in r", unplannedKept)
	if e.ArtifactType != "application/x" {
		t.Errorf("artifact type %q", e.ArtifactType)
	}

	missing := oci.Compute(oci.SHA256, []byte("not there"))
	e = b.explainManifest(t, "r", refer(missing, "3"), explain.FateWaiting)
	if got := e.Sentences(); len(got) != 2 || got[1] != "its subject "+missing.String()+" is not in r, so it does not keep this manifest" {
		t.Errorf("it says %q", got)
	}
}

// The explanation of a manifest to which only manifests of its own cycle refer must say
// that the manifest isn't kept.
func TestExplainCircles(t *testing.T) {
	t.Parallel()
	b := setup(t)
	config := b.Push(t, "r", "config")
	list := nested(t, b, config)
	var d []oci.Digest
	for _, payload := range list {
		d = append(d, oci.Compute(oci.SHA256, payload))
	}
	only := "only a cycle refers to it: the manifests named here and this one refer to each other, and none of them has a tag"
	b.Exec(t, "DELETE FROM gc_manifest_review_queue q USING manifests m WHERE m.id = q.manifest_id AND m.digest <> $1", d[2].Bytes())
	e := b.explainManifest(t, "r", d[2], explain.FateWaiting)
	if got := e.Sentences(); !e.Circle || len(got) < 3 || got[0] != only ||
		got[1] != "in the cycle: its subject "+d[0].String()+" is in r" || !strings.HasSuffix(got[2], "; nothing keeps it, so it will be deleted") {
		t.Errorf("it says %q", got)
	}
	e = b.explainManifest(t, "r", d[0], explain.FateWaiting)
	says(t, e.Sentences(), only, "in the cycle: index "+d[1].String()+" of r contains it (no tag)",
		"no review of it is planned; it will be deleted after the review of another manifest of the cycle",
		"1 manifest refers to it: "+d[2].String()+"; when it is deleted, that is reviewed")
	b.DueNow(t)
	b.explainManifest(t, "r", d[2], explain.FateDue)

	// Now an index with a tag lists a manifest of the cycle, so the whole cycle must be
	// kept.
	b.Put(t, "r", catalogtest.Index(t, d[1]), "v1")
	for _, digest := range d {
		if e := b.explainManifest(t, "r", digest, explain.FateKept); e.Circle || strings.Contains(e.Sentences()[0], "cycle") {
			t.Errorf("it says %q", e.Sentences())
		}
	}
}

// 13 indexes list one manifest. The explanation must have the first ten of them and the
// number of all.
func TestExplainLongLists(t *testing.T) {
	t.Parallel()
	b := setup(t)
	config := b.Push(t, "r", "config")
	child := b.Put(t, "r", catalogtest.Image(t, config, nil, nil))
	indexes := []oci.Digest{}
	for i := range 13 {
		var extra []oci.Digest
		for range i {
			extra = append(extra, child) // the same child again makes another index
		}
		indexes = append(indexes, b.Put(t, "r", catalogtest.Index(t, append(extra, child)...)))
	}
	e := b.explainManifest(t, "r", child, explain.FateKept)
	if len(e.Indexes.First) != 10 || e.Indexes.Total != exact(13) || e.Indexes.First[9].Digest != indexes[9] {
		t.Errorf("indexes: %+v", e.Indexes)
	}
	if got := e.Sentences()[10]; got != "kept: 3 more indexes of r contain it" {
		t.Errorf("it says %q", got)
	}
}

func TestExplainBlob(t *testing.T) { catalogtest.AtBoth(t, testExplainBlob) }

func testExplainBlob(t *testing.T, dsn string) {
	b := replica(t, dsn)
	config, layer := b.Push(t, "a/r", "config"), b.Push(t, "a/r", "layer")
	for _, r := range []string{"b/r", "c/unused"} {
		if ok, err := b.Mount(t.Context(), r, "a/r", layer); err != nil || !ok {
			t.Fatal(ok, err)
		}
	}
	b.Push(t, "b/r", "config")
	one := b.Put(t, "a/r", catalogtest.Image(t, config, []oci.Digest{layer}, nil), "v1")
	two := b.Put(t, "b/r", catalogtest.Image(t, config, []oci.Digest{layer}, nil), "v1")

	e := b.explainBlob(t, layer, explain.FateKept)
	if e.Size != 5 || e.Linked != exact(3) || e.Unused.Total != exact(1) || e.Review == nil || e.StorageKey == "" {
		t.Errorf("got %+v", e)
	}
	text := e.Sentences()
	says(t, slices.Delete(slices.Clone(text), 2, 3),
		"kept: a/r@"+one.String()+" uses it as layer",
		"kept: b/r@"+two.String()+" uses it as layer",
		"1 repository has a link to it, and no manifest that uses it: c/unused; such a link does not keep the blob, and a review removes the link",
		"it has 5 B (5 bytes) and is stored as "+e.StorageKey+" since TIME")
	if !strings.HasSuffix(text[2], "because it was pushed, or a client was told that it exists; the review keeps it as long as something refers to it") {
		t.Errorf("of the review it says %q", text[2])
	}
	e = b.explainBlob(t, config, explain.FateKept)
	if e.Configurations.Total != exact(2) || e.Sentences()[0] != "kept: a/r@"+one.String()+" uses it as configuration" {
		t.Errorf("it says %q", e.Sentences())
	}

	if err := b.DeleteManifest(t.Context(), "a/r", one); err != nil {
		t.Fatal(err)
	}
	e = b.explainBlob(t, layer, explain.FateKept)
	if e.Layers.Total != exact(1) || !slices.Equal(e.Unused.First, []string{"a/r", "c/unused"}) {
		t.Errorf("after a manifest was deleted: %+v", e)
	}
	if err := b.DeleteManifest(t.Context(), "b/r", two); err != nil {
		t.Fatal(err)
	}
	e = b.explainBlob(t, layer, explain.FateWaiting)
	if got := e.Sentences()[0]; !strings.HasPrefix(got, "will be reviewed at ") ||
		!strings.HasSuffix(got, "because a manifest with it as layer was deleted; nothing keeps it, so it will be deleted") {
		t.Errorf("it says %q", got)
	}
	b.Exec(t, "UPDATE blobs SET lost_at = now() WHERE digest = $1", layer.Bytes())
	if text := strings.Join(b.explainBlob(t, layer, explain.FateWaiting).Sentences(), "\n"); !strings.Contains(text, "its content is lost") {
		t.Errorf("it says %q", text)
	}
	b.Exec(t, "DELETE FROM gc_blob_review_queue")
	b.explainBlob(t, layer, explain.FateUnplanned)
}

// More than 10,000 manifests use one blob. The explanation must count them only up to
// explainLimit, and mark the count as inexact.
func TestExplainBlobThatEverybodyUses(t *testing.T) {
	t.Parallel()
	b := setup(t)
	config, layer := b.Push(t, "a/r", "config"), b.Push(t, "a/r", "layer")
	d := b.Put(t, "a/r", catalogtest.Image(t, config, []oci.Digest{layer}, nil), "v1")
	err := b.DB.Tx(t.Context(), func(tx pgx.Tx) error {
		for _, sql := range []string{
			"SET LOCAL session_replication_role = replica", // without triggers, which take long here
			`WITH m AS (
				INSERT INTO manifests (top_level_namespace_id, repository_id, digest, media_type, payload, total_size)
				SELECT top_level_namespace_id, repository_id, '\x01'::bytea || sha256(i::text::bytea), media_type, payload, total_size
				FROM manifests, generate_series(1, 10500) i RETURNING *
			), l AS (
				INSERT INTO layers (top_level_namespace_id, repository_id, manifest_id, digest, size, media_type)
				SELECT m.top_level_namespace_id, m.repository_id, m.id, b.digest, 5, 'x' FROM m, blobs b WHERE b.size = 5 RETURNING *
			)
			INSERT INTO gc_blobs_layers SELECT top_level_namespace_id, repository_id, id, digest FROM l`,
			`WITH r AS (
				INSERT INTO repositories (top_level_namespace_id, path)
				SELECT top_level_namespace_id, path || '/' || i FROM repositories, generate_series(1, 10500) i RETURNING *
			)
			INSERT INTO repository_blobs (top_level_namespace_id, repository_id, blob_digest)
			SELECT r.top_level_namespace_id, r.id, b.digest FROM r, blobs b WHERE b.size = 5`,
		} {
			if _, err := tx.Exec(t.Context(), sql); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	e := b.explainBlob(t, layer, explain.FateKept)
	t.Logf("explaining it took %v", time.Since(start))
	limit := catalog.Count{Rows: 10_000}
	if e.Layers.Total != limit || len(e.Layers.First) != 10 || e.Layers.First[0] != (explain.BlobUse{Repository: "a/r", Digest: d}) {
		t.Errorf("layers: %+v", e.Layers)
	}
	if e.Linked != limit || e.Unused.Total.Exact || len(e.Unused.First) != 10 {
		t.Errorf("linked: %+v, unused: %+v", e.Linked, e.Unused)
	}
	if text := e.Sentences()[10]; text != "kept: more than 9,990 more manifests use it as layer" {
		t.Errorf("it says %q", text)
	}
}

func TestExplainUnknown(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Push(t, "known", "x")
	d := oci.Compute(oci.SHA256, []byte("nowhere"))
	_, err := b.ExplainManifest(t.Context(), "unknown", d)
	catalogtest.WantCode(t, err, oci.NameUnknown)
	_, err = b.ExplainManifest(t.Context(), "known", d)
	catalogtest.WantCode(t, err, oci.ManifestUnknown)
	_, err = b.ExplainBlob(t.Context(), d)
	catalogtest.WantCode(t, err, oci.BlobUnknown)
	if !strings.Contains(err.Error(), "no repository has a manifest with this digest: it was never pushed") {
		t.Errorf("of an unknown digest it says %v", err)
	}
}

// TestExplainManifestWithoutRepository: the digest of a manifest without its repository isn't taken for
// one that was never pushed. The error names repositories that have the manifest.
func TestExplainManifestWithoutRepository(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var d oci.Digest
	for _, path := range []string{"library/app", "acme/app", "gone/app"} {
		d = b.Put(t, path, catalogtest.Image(t, b.Push(t, path, "config"), nil, nil), "v1")
	}
	b.Put(t, "acme/other", catalogtest.Numbered(t, 1, b.Push(t, "acme/other", "config")), "v1")
	if err := b.Trash.DeleteRepository(t.Context(), "gone/app"); err != nil {
		t.Fatal(err)
	}
	_, err := b.ExplainBlob(t.Context(), d)
	catalogtest.WantCode(t, err, oci.BlobUnknown)
	if want := d.String() + " is not a blob, but a manifest of acme/app, library/app: name its repository too, as in acme/app@" + d.String(); !strings.Contains(err.Error(), want) {
		t.Errorf("it says %v, want %s", err, want)
	}
}

// Scripts read explanations as JSON, so the names of the JSON fields must not change.
func TestExplanationsAsJSON(t *testing.T) {
	t.Parallel()
	b := setup(t)
	config := b.Push(t, "r", "config")
	d := b.Put(t, "r", catalogtest.Image(t, config, nil, nil), "v1")
	manifest, blob := b.explainManifest(t, "r", d, explain.FateKept), b.explainBlob(t, config, explain.FateKept)
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	manifest.AsOf, manifest.CreatedAt = at, at
	blob.AsOf, blob.CreatedAt, blob.StorageKey = at, at, "KEY"
	blob.Review.QueuedAt, blob.Review.ReviewAfter = at, at
	none, one := `{"first":[],"total":{"count":0,"exact":true}}`, `"total":{"count":1,"exact":true}}`
	for want, e := range map[string]any{
		fmt.Sprintf(`{"as_of":"2026-01-02T03:04:05Z","fate":"kept","repository":"r","digest":"%s",`+
			`"media_type":"application/vnd.oci.image.manifest.v1+json","artifact_type":"application/vnd.oci.image.config.v1+json","size":%d,"created_at":"2026-01-02T03:04:05Z",`+
			`"tags":{"first":["v1"],%s,"indexes":%s,"subject":null,"circle":false,"held_by":[],"review":null,"referrers":%[4]s,"children":%[4]s,"missing":%[4]s}`,
			d, manifest.Size, one, none): manifest,
		fmt.Sprintf(`{"as_of":"2026-01-02T03:04:05Z","fate":"kept","digest":"%s","size":6,"media_type":"%s","storage_key":"KEY",`+
			`"created_at":"2026-01-02T03:04:05Z","lost_at":null,"configurations":{"first":[{"repository":"r","digest":"%s"}],%s,`+
			`"layers":%s,"linked":{"count":1,"exact":true},"unused":%[5]s,"review":{"event":"blob_upload",`+
			`"queued_at":"2026-01-02T03:04:05Z","review_after":"2026-01-02T03:04:05Z","review_count":0,"set_aside_at":null,"last_error":""}}`,
			config, blob.MediaType, d, one, none): blob,
	} {
		got, err := json.Marshal(e)
		if err != nil || string(got) != want {
			t.Errorf("got  %s (%v)\nwant %s", got, err, want)
		}
	}
}

func TestAge(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		-time.Hour: "0s", 0: "0s", 400 * time.Millisecond: "0s", 59*time.Second + 600*time.Millisecond: "1m",
		12*time.Minute + 5*time.Second: "12m5s", 3*time.Hour + 12*time.Minute + 50*time.Second: "3h12m",
		24 * time.Hour: "1d", 76*time.Hour + time.Minute: "3d4h",
	} {
		if got := explain.Age(d); got != want {
			t.Errorf("Age(%v) = %q, want %q", d, got, want)
		}
	}
}

// TestExplainTrash: a blob that only repositories in the trash use is kept, and the explanation names
// these repositories.
func TestExplainTrash(t *testing.T) {
	t.Parallel()
	b := bundle{catalogtest.WithTrash(t, dbtest.DSN(t), time.Hour)}
	config := b.Push(t, "acme/app", "config")
	image := b.Put(t, "acme/app", catalogtest.Image(t, config, nil, nil), "v1")
	layer := b.Push(t, "gone/app", "layer")
	b.Push(t, "gone/app", "config")
	other := b.Put(t, "gone/app", catalogtest.Image(t, config, []oci.Digest{layer}, nil), "v1")
	b.Push(t, "acme/app", "layer")
	for _, err := range []error{b.Trash.DeleteRepository(t.Context(), "acme/app"), b.Trash.DeleteNamespace(t.Context(), "gone")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	const trash = "; the repository is in the trash, and can be restored until it is purged"
	got := b.explainBlob(t, layer, explain.FateKept).Sentences()
	if want := "kept: gone/app@" + other.String() + " uses it as layer" + trash; got[0] != want || !strings.Contains(strings.Join(got, "\n"), "uses it: acme/app (in the trash);") {
		t.Errorf("got %q, want %q first", got, want)
	}
	got = b.explainBlob(t, config, explain.FateKept).Sentences()
	if want := "kept: acme/app@" + image.String() + " uses it as configuration" + trash; got[0] != want {
		t.Errorf("got %q, want %q first", got, want)
	}
}

// TestExplainManifestInTrash: a manifest that only repositories in the trash have isn't taken for one
// that was never pushed. The errors name what was deleted, and until when it is kept.
func TestExplainManifestInTrash(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	b := bundle{catalogtest.WithTrash(t, dbtest.DSN(t), time.Hour)}
	put := func(path string, n int) oci.Digest {
		return b.Put(t, path, catalogtest.Numbered(t, n, b.Push(t, path, "config")), "v1")
	}
	d, alone := put("acme/app", 1), put("gone/app", 2)
	put("gone/app", 1)
	repository, err := b.Trash.RemoveRepository(ctx, "acme/app")
	if err != nil {
		t.Fatal(err)
	}
	namespace, err := b.Trash.RemoveNamespace(ctx, "gone")
	if err != nil {
		t.Fatal(err)
	}
	const until = ` until \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ\)`
	acme, gone := `acme/app \(in the trash as `+repository+until, `gone/app \(in the trash as `+namespace+until
	says := func(err error, code oci.Code, want string) {
		t.Helper()
		catalogtest.WantCode(t, err, code)
		if !regexp.MustCompile(want).MatchString(err.Error()) {
			t.Errorf("it says %v, want %s", err, want)
		}
	}
	tagged := func(path, tag string) error {
		_, err := explain.Tagged(ctx, b.Collector, path, tag)
		return err
	}
	manifest := func(path string, d oci.Digest) error {
		_, err := b.ExplainManifest(ctx, path, d)
		return err
	}
	blob := func(d oci.Digest) error {
		_, err := b.ExplainBlob(ctx, d)
		return err
	}
	const keeps = "; garbage collection keeps what was deleted: "
	says(blob(alone), oci.BlobUnknown, alone.String()+" is not a blob, but a manifest"+keeps+gone+"$")
	says(blob(d), oci.BlobUnknown, keeps+"(acme.*gone|gone.*acme)")
	says(manifest("acme/app", d), oci.NameUnknown, "repository acme/app is not known to this registry"+keeps+acme+"$")
	says(tagged("acme/app", "v1"), oci.NameUnknown, keeps+acme+"$")
	says(manifest("gone/app", d), oci.NameUnknown, keeps+gone+"$")
	says(manifest("acme/app", alone), oci.NameUnknown, "is not known to this registry$")
	says(tagged("acme/app", "v2"), oci.NameUnknown, "is not known to this registry$")

	put("acme/app", 3)
	put("gone/web", 1)                                                                         // another namespace of the name gone
	says(manifest("acme/app", d), oci.ManifestUnknown, "is not known to repository acme/app$") // it is another repository
	says(manifest("gone/app", d), oci.NameUnknown, "is not known to this registry$")
	says(blob(d), oci.BlobUnknown, "but a manifest of gone/web: name its repository too, as in gone/web@"+d.String()+"; what was deleted has it too: ")
}
