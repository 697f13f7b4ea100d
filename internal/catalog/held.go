package catalog

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/purser-registry/purser/internal/hold"
	"github.com/purser-registry/purser/internal/oci"
)

// HeldDetail is the detail of the error for something that is held.
type HeldDetail struct {
	Name   string        `json:"name"`
	Tag    string        `json:"tag,omitempty"`
	Digest string        `json:"digest,omitempty"`
	HeldBy []hold.Holder `json:"held_by"`
}

// Held returns the client's error for something that isn't deleted because it is held. `what`
// describes it.
func Held(what string, d HeldDetail) error {
	var by []string
	for _, h := range d.HeldBy {
		by = append(by, h.String())
	}
	return oci.Errorf(oci.Denied, "%s is deployed: it is held by %s; override_holds deletes it all the same", what, strings.Join(by, "; ")).
		WithStatus(http.StatusConflict).WithDetail(d)
}

// tagHeld returns the client's error for a tag that isn't deleted because its manifest is held,
// or nil if that isn't so any more.
func (c *Catalog) tagHeld(ctx context.Context, r repository, path, tag string) error {
	var id int64
	var digest []byte
	err := c.db.Pool.QueryRow(ctx, `
		SELECT m.id, m.digest FROM (
			SELECT manifest_id FROM tags
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND name = $3 OFFSET 0) t
		CROSS JOIN LATERAL (
			SELECT id, digest FROM manifests
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND id = t.manifest_id OFFSET 0) m`, r.namespace, r.id, tag).Scan(&id, &digest)
	if isNoRows(err) {
		return ManifestUnknown(path, tag)
	}
	if err != nil {
		return err
	}
	return c.heldBy(ctx, r, path, id, digest, tag)
}

// manifestHeld is like tagHeld, for a manifest.
func (c *Catalog) manifestHeld(ctx context.Context, r repository, path string, d oci.Digest) error {
	var id int64
	var tags []string
	err := c.db.Pool.QueryRow(ctx, `
		SELECT m.id, ARRAY(
			SELECT name FROM tags WHERE top_level_namespace_id = $1 AND repository_id = $2 AND manifest_id = m.id ORDER BY name LIMIT 100)
		FROM manifests m WHERE m.top_level_namespace_id = $1 AND m.repository_id = $2 AND m.digest = $3`, r.namespace, r.id, d.Bytes()).Scan(&id, &tags)
	if isNoRows(err) {
		return ManifestUnknown(path, d.String())
	}
	if err != nil {
		return err
	}
	return c.heldBy(ctx, r, path, id, d.Bytes(), tags...)
}

// heldBy returns the client's error for a manifest with tags that is held, or nil if it isn't.
func (c *Catalog) heldBy(ctx context.Context, r repository, path string, id int64, digest []byte, tags ...string) error {
	d, err := oci.DigestFromBytes(digest)
	if err != nil {
		return err
	}
	detail := HeldDetail{Name: path, Digest: d.String()}
	what := fmt.Sprintf("manifest %s of %s", d, path)
	if len(tags) == 1 {
		detail.Tag, what = tags[0], fmt.Sprintf("tag %s of %s", tags[0], path)
	}
	of, err := hold.Of(ctx, c.db.Pool, r.namespace, r.id, []int64{id})
	if err != nil {
		return err
	}
	detail.HeldBy = of[id]
	named, err := hold.OfNames(ctx, c.db.Pool, r.namespace, r.id, tags)
	if err != nil {
		return err
	}
	for _, tag := range tags {
		detail.HeldBy = append(detail.HeldBy, named[tag]...)
	}
	if len(detail.HeldBy) == 0 {
		return nil
	}
	return Held(what, detail)
}
