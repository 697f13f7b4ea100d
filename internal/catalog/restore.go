package catalog

import (
	"context"
	"fmt"
	"slices"

	"github.com/purser-registry/purser/internal/oci"
)

// RestoreTag points a tag, new or existing, to manifest d of the repository, whether the
// manifest has other tags or not. Errors: NAME_UNKNOWN; MANIFEST_UNKNOWN if the manifest isn't
// in the repository; if the tag points to another manifest, DENIED with status 409 if the tag is
// protected, and DENIED with status 403 with the option KeepTag.
//
// RestoreTag locks the manifest before it writes the tag. If a review of the manifest has the
// lock first and deletes the manifest, the error is MANIFEST_UNKNOWN. A review that comes
// later sees the tag and keeps the manifest.
func (c *Catalog) RestoreTag(ctx context.Context, path, tag string, d oci.Digest, options ...TagOption) error {
	return c.pointTag(ctx, path, tag, d, "revert_tag", options)
}

// PointTag is like RestoreTag, but the audit log records that the tag was created or moved,
// not that it was restored.
func (c *Catalog) PointTag(ctx context.Context, path, tag string, d oci.Digest, options ...TagOption) error {
	return c.pointTag(ctx, path, tag, d, "create_tag", options)
}

func (c *Catalog) pointTag(ctx context.Context, path, tag string, d oci.Digest, kind string, options []TagOption) error {
	p := NewManifest{Repository: path, Digest: d, KeepTags: slices.Contains(options, KeepTag)}
	rows := manifestColumns{digest: d.Bytes(), tags: []string{tag}}
	if err := c.admitTags(ctx, path, rows.tags); err != nil {
		return err
	}
	return c.write(ctx, write{
		path: path, doing: fmt.Sprintf("pointing tag %s of %s to a manifest", tag, path), drop: c.cache.dropTags,
		run: func(ctx context.Context, r repository) error { return c.putExisting(ctx, r, p, rows, kind) },
		answer: func(ctx context.Context, r repository, why refusal) error {
			switch why {
			case tagProtected:
				return c.moveRefused(ctx, r, p, rows.tags)
			case manifestGone:
				return oci.Errorf(oci.ManifestUnknown,
					"manifest %s is not in repository %s: it was never pushed there, or it has been deleted since, and then only a new push brings it back", d, path).
					WithDetail(map[string]string{"name": path, "digest": d.String()})
			default:
				return why
			}
		},
	})
}
