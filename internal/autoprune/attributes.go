package autoprune

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/purser-registry/purser/internal/oci"
)

// attributedImages is how many manifests an index may list for their configurations to count.
// It bounds the memory that a page of indexes needs.
const attributedImages = 100

// fillAttributes sets Matched and Unmatched of the tags on the page, if a policy needs them.
func (r *tagReader) fillAttributes(ctx context.Context, page []candidate) error {
	judge := newAttributeJudge(r.saved)
	if judge == nil || len(page) == 0 {
		return nil
	}
	var ids []int64
	for i := range page {
		if judge.asks(&page[i].tag) {
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
		page[i].tag.Matched, page[i].tag.Unmatched = m.matched, m.unmatched
	}
	return nil
}

// attributeJudge judges manifests by those policies that look at attributes.
type attributeJudge struct {
	saved   []Saved
	reading PolicySet // the policies that look at attributes
	// annotations and images say what the policies look at.
	annotations, images bool
}

// newAttributeJudge returns nil if no policy looks at attributes.
func newAttributeJudge(saved []Saved) *attributeJudge {
	j := &attributeJudge{saved: saved}
	for i := range saved {
		if p := &saved[i].Policy; p.readsAttributes() {
			j.reading = j.reading.with(i)
			j.annotations = j.annotations || p.where.annotations != nil
			j.images = j.images || p.readsImages()
		}
	}
	if j.reading == 0 {
		return nil
	}
	return j
}

// asks returns whether a policy needs the attributes of the tag's manifest.
func (j *attributeJudge) asks(t *Tag) bool {
	if t.attached() {
		return false
	}
	for i := range j.reading.All() {
		if j.saved[i].Policy.considersManifest(t) {
			return true
		}
	}
	return false
}

// matches are the policies whose selectors by attributes select and don't select a manifest.
type matches struct{ matched, unmatched PolicySet }

func (j *attributeJudge) judge(a Attributes) (m matches) {
	for i := range j.reading.All() {
		switch selected, known := j.saved[i].Policy.MatchAttributes(a); {
		case selected:
			m.matched = m.matched.with(i)
		case known:
			m.unmatched = m.unmatched.with(i)
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

// indexAttributes is what the payload of an index says.
type indexAttributes struct {
	annotations map[string]string
	listed      []listedImage
}

// Attributes judges manifests by the policies that look at their attributes. It reads payloads
// one after the other, since a payload may have 4 MiB.
func (s *snapshot) Attributes(ctx context.Context, manifests []int64, judge *attributeJudge) (map[int64]matches, error) {
	rows, err := s.tx.Query(ctx, `
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
	found := make(map[int64]matches, len(manifests))
	indexes := make(map[int64]indexAttributes)
	var id int64
	var payload pgtype.DriverBytes // valid until the next row
	var c storedConfiguration
	_, err = pgx.ForEachRow(rows, []any{&id, &payload, &c.exists, &c.known, &c.platform, &c.labels}, func() error {
		a := Attributes{Images: []ImageAttributes{c.attributes()}}
		if payload == nil {
			found[id] = judge.judge(a)
			return nil
		}
		var content struct {
			Annotations map[string]string `json:"annotations"`
			Manifests   []listedImage     `json:"manifests"`
		}
		if err := json.Unmarshal(payload, &content); err != nil {
			return nil //nolint:nilerr // the policies are in doubt about the tag
		}
		a.Annotations = content.Annotations
		switch x := (indexAttributes{annotations: content.Annotations, listed: content.Manifests}); {
		case c.exists || content.Manifests == nil || !judge.images:
			found[id] = judge.judge(a)
		case len(x.listed) > attributedImages:
			found[id] = judge.judge(x.attributes(nil))
		default:
			indexes[id] = x
		}
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

func (c storedConfiguration) attributes() (a ImageAttributes) {
	a.PlatformKnown, a.Platform = c.known || !c.exists, c.platform
	a.LabelsKnown = a.PlatformKnown
	if c.labels != "" && json.Unmarshal([]byte(c.labels), &a.Labels) != nil {
		a.LabelsKnown = false
	}
	return a
}

// indexAttributes judges indexes, and adds them to `found`.
func (s *snapshot) indexAttributes(ctx context.Context, indexes map[int64]indexAttributes, judge *attributeJudge, found map[int64]matches) error {
	if len(indexes) == 0 {
		return nil
	}
	ids := make([]int64, 0, len(indexes))
	for id := range indexes {
		ids = append(ids, id)
	}
	rows, err := s.tx.Query(ctx, `
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
			found[last] = judge.judge(indexes[last].attributes(images))
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
		found[id] = judge.judge(one.attributes(nil))
	}
	return nil
}

// attributes returns the attributes of an index. `images` has the configurations of the
// manifests that it lists, as far as they are in the repository, by digest.
func (x indexAttributes) attributes(images map[string]storedConfiguration) Attributes {
	a := Attributes{Annotations: x.annotations}
	for _, one := range x.listed {
		if !(oci.Descriptor{MediaType: one.MediaType}).IsManifest() {
			continue
		}
		var image ImageAttributes
		if c, ok := images[string(one.Digest.Bytes())]; ok {
			image = c.attributes()
		}
		if one.Platform != nil {
			if platform := platformOf(one.Platform.OS, one.Platform.Architecture, one.Platform.Variant); platform != "" {
				image.Platform, image.PlatformKnown = platform, true
			}
		}
		a.Images = append(a.Images, image)
	}
	return a
}
