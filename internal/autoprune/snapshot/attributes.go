package snapshot

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/policy"
)

// attributedImages is how many manifests an index may list for their configurations to count.
// It bounds the memory that a page of indexes needs, with maxPlatform.
const attributedImages = 100

// fillAttributes sets Matched and Unmatched of the tags on the page, if a policy needs them.
func (r *TagReader) fillAttributes(ctx context.Context, page []Tag) error {
	judge := NewAttributeJudge(r.policies)
	if judge == nil || len(page) == 0 {
		return nil
	}
	var ids []int64
	for i := range page {
		if judge.asks(&page[i].Judged) {
			ids = append(ids, page[i].Manifest)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	slices.Sort(ids)
	found, err := r.s.Attributes(ctx, slices.Compact(ids), judge)
	if err != nil {
		return err
	}
	for i := range page {
		m := found[page[i].Manifest]
		page[i].Judged.Matched, page[i].Judged.Unmatched, page[i].Judged.Platforms = m.Matched, m.Unmatched, m.Platforms
	}
	return nil
}

// AttributeJudge judges manifests by those policies that look at attributes.
type AttributeJudge struct {
	policies []judge.Applied
	reading  judge.PolicySet // the policies that look at attributes
	// platforms are the policies that count for each platform.
	platforms judge.PolicySet
	// annotations and images say what the policies look at.
	annotations, images bool
}

// NewAttributeJudge returns nil if no policy looks at attributes.
func NewAttributeJudge(policies []judge.Applied) *AttributeJudge {
	j := &AttributeJudge{policies: policies}
	for i := range policies {
		if p := &policies[i].Policy; p.ReadsAttributes() {
			j.reading = j.reading.With(i)
			j.annotations = j.annotations || p.Annotations != nil
			j.images = j.images || p.ReadsImages()
		}
		if policies[i].Policy.ReadsPlatforms() {
			j.platforms, j.images = j.platforms.With(i), true
		}
	}
	if j.reading == 0 && j.platforms == 0 {
		return nil
	}
	return j
}

// asks returns whether a policy needs the attributes of the tag's manifest.
func (j *AttributeJudge) asks(t *judge.Tag) bool {
	if t.Attached() {
		return false
	}
	for i := range (j.reading | j.platforms).All() {
		if t.NamedBy(&j.policies[i].Policy, i) {
			return true
		}
	}
	return false
}

// Matches are the policies whose selectors by attributes select and don't select a manifest, and
// its platforms as Tag.Platforms has them.
type Matches struct {
	Matched, Unmatched judge.PolicySet
	Platforms          string
}

// annotated returns the policies whose selector annotations selects a manifest with these
// annotations, or that have none.
func (j *AttributeJudge) annotated(annotations map[string]string) (s judge.PolicySet) {
	for i := range j.reading.All() {
		if j.policies[i].Policy.MatchAnnotations(annotations) {
			s = s.With(i)
		}
	}
	return s
}

// judge judges a manifest with these images, whose annotations select `annotated`.
func (j *AttributeJudge) judge(annotated judge.PolicySet, images []policy.ImageAttributes) (m Matches) {
	if j.platforms != 0 {
		m.Platforms = judge.PlatformsOf(images)
	}
	for i := range j.reading.All() {
		if !annotated.Has(i) {
			m.Unmatched = m.Unmatched.With(i)
			continue
		}
		switch selected, known := j.policies[i].Policy.MatchImages(images); {
		case selected:
			m.Matched = m.Matched.With(i)
		case known:
			m.Unmatched = m.Unmatched.With(i)
		}
	}
	return m
}

// listedImage is an image as an index lists it.
type listedImage struct {
	MediaType string        `json:"mediaType"`
	Digest    oci.Digest    `json:"digest"`
	Platform  *oci.Platform `json:"platform"`
}

// indexAttributes is what is kept of an index's payload, which may have 4 MiB: by which policies
// its annotations are selected, and which images it lists.
type indexAttributes struct {
	annotated judge.PolicySet
	images    []indexImage
}

// indexImage is an image that an index lists.
type indexImage struct {
	digest   string // as in the database
	platform string // as the index names it, in the form of platformOf
	named    bool   // the index names a platform
	known    bool   // this platform isn't too long
}

// indexImages returns the images of an index, without entries that aren't manifests.
func indexImages(listed []listedImage) []indexImage {
	images := make([]indexImage, 0, min(len(listed), attributedImages))
	for _, one := range listed {
		if !(oci.Descriptor{MediaType: one.MediaType}).IsManifest() {
			continue
		}
		image := indexImage{digest: string(one.Digest.Bytes())}
		if one.Platform != nil {
			image.platform, image.known = platformOf(one.Platform.OS, one.Platform.Architecture, one.Platform.Variant)
			image.named = image.platform != "" || !image.known
		}
		images = append(images, image)
	}
	return images
}

// Attributes judges manifests by the policies that look at their attributes. It reads payloads
// one after the other, since a payload may have 4 MiB.
func (s *Snapshot) Attributes(ctx context.Context, manifests []int64, judge *AttributeJudge) (map[int64]Matches, error) {
	rows, err := s.Tx.Query(ctx, `
		SELECT want.id, CASE WHEN $4 OR m.configuration_blob_digest IS NULL THEN m.payload END,
			m.configuration_blob_digest IS NOT NULL, COALESCE(a.known, false), COALESCE(a.platform, ''), COALESCE(a.labels, '')
		FROM unnest($3::bigint[]) AS want (id)
		CROSS JOIN LATERAL (
			SELECT configuration_blob_digest, payload FROM manifests
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND id BETWEEN want.id AND want.id
			ORDER BY id LIMIT 1) m
		LEFT JOIN LATERAL (
			SELECT problem = '' AS known, platform, labels FROM configurationattributes
			WHERE $5 AND digest = m.configuration_blob_digest OFFSET 0) a ON true`,
		s.target.NamespaceID, s.target.ID, manifests, judge.annotations, judge.images)
	if err != nil {
		return nil, s.failed(err)
	}
	found := make(map[int64]Matches, len(manifests))
	indexes := make(map[int64]indexAttributes)
	var id int64
	var payload pgtype.DriverBytes // valid until the next row
	var c storedConfiguration
	_, err = pgx.ForEachRow(rows, []any{&id, &payload, &c.exists, &c.known, &c.platform, &c.labels}, func() error {
		own := []policy.ImageAttributes{c.attributes()}
		if payload == nil {
			found[id] = judge.judge(judge.reading, own)
			return nil
		}
		var content struct {
			Annotations map[string]string `json:"annotations"`
			Manifests   []listedImage     `json:"manifests"`
		}
		if err := json.Unmarshal(payload, &content); err != nil {
			return nil //nolint:nilerr // the policies are in doubt about the tag
		}
		annotated := judge.annotated(content.Annotations)
		if c.exists || content.Manifests == nil || !judge.images {
			found[id] = judge.judge(annotated, own)
			return nil
		}
		x := indexAttributes{annotated, indexImages(content.Manifests)}
		if len(content.Manifests) > attributedImages {
			found[id] = judge.judge(annotated, x.attributes(nil))
			return nil
		}
		indexes[id] = x
		return nil
	})
	if err != nil {
		return nil, s.failed(err)
	}
	return found, s.indexAttributes(ctx, indexes, judge, found)
}

// storedConfiguration is a row of configurationattributes.
type storedConfiguration struct {
	exists           bool // the manifest has a configuration
	known            bool // it was read
	platform, labels string
}

func (c storedConfiguration) attributes() (a policy.ImageAttributes) {
	a.PlatformKnown, a.Platform = c.known || !c.exists, c.platform
	a.LabelsKnown = a.PlatformKnown
	if c.labels != "" && json.Unmarshal([]byte(c.labels), &a.Labels) != nil {
		a.LabelsKnown = false
	}
	return a
}

// indexAttributes judges indexes, and adds them to `found`.
func (s *Snapshot) indexAttributes(ctx context.Context, indexes map[int64]indexAttributes, judge *AttributeJudge, found map[int64]Matches) error {
	if len(indexes) == 0 {
		return nil
	}
	ids := make([]int64, 0, len(indexes))
	for id := range indexes {
		ids = append(ids, id)
	}
	rows, err := s.Tx.Query(ctx, `
		SELECT want.id, child.digest, child.configuration_blob_digest IS NOT NULL,
			COALESCE(a.known, false), COALESCE(a.platform, ''), COALESCE(a.labels, '')
		FROM unnest($3::bigint[]) AS want (id)
		CROSS JOIN LATERAL (
			SELECT child_id FROM manifest_references
			WHERE repository_id = $2 AND top_level_namespace_id = $1 AND parent_id = want.id OFFSET 0) x
		CROSS JOIN LATERAL (
			SELECT digest, configuration_blob_digest FROM manifests
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND id BETWEEN x.child_id AND x.child_id
			ORDER BY id LIMIT 1) child
		LEFT JOIN LATERAL (
			SELECT problem = '' AS known, platform, labels FROM configurationattributes
			WHERE digest = child.configuration_blob_digest OFFSET 0) a ON true
		ORDER BY want.id`, s.target.NamespaceID, s.target.ID, ids)
	if err != nil {
		return s.failed(err)
	}
	images := make(map[string]storedConfiguration) // of the index `last`, by digest
	last, id := int64(0), int64(0)
	settle := func() {
		if last > 0 {
			found[last] = judge.judge(indexes[last].annotated, indexes[last].attributes(images))
			delete(indexes, last)
			clear(images)
		}
	}
	var digest []byte
	var c storedConfiguration
	_, err = pgx.ForEachRow(rows, []any{&id, &digest, &c.exists, &c.known, &c.platform, &c.labels}, func() error {
		if id != last {
			settle()
			last = id
		}
		images[string(digest)] = c
		return nil
	})
	if err != nil {
		return s.failed(err)
	}
	settle()
	for id, one := range indexes { // these have no manifests in the repository
		found[id] = judge.judge(one.annotated, one.attributes(nil))
	}
	return nil
}

// attributes returns the attributes of the images of an index. `stored` has the configurations
// of the manifests that it lists, as far as they are in the repository, by digest.
func (x indexAttributes) attributes(stored map[string]storedConfiguration) []policy.ImageAttributes {
	images := make([]policy.ImageAttributes, len(x.images))
	for i, one := range x.images {
		if c, ok := stored[one.digest]; ok {
			images[i] = c.attributes()
		}
		if one.named {
			images[i].Platform, images[i].PlatformKnown = one.platform, one.known
		}
	}
	return images
}
