package catalog

import (
	"context"
	"errors"
	"fmt"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// RestoreTag points a tag of the repository, new or existing, to a manifest that is still in
// the repository, tagged or not. Errors: NAME_UNKNOWN; MANIFEST_UNKNOWN if the manifest
// doesn't exist; DENIED, with status 409, for a protected tag that points to another
// manifest.
//
// It locks the manifest before it writes the tag, as for every reference: a review that came
// first has deleted the manifest, a later one sees the tag or leaves the manifest alone.
func (c *Catalog) RestoreTag(ctx context.Context, path, tag string, d oci.Digest) error {
	return c.pointTag(ctx, path, tag, d, "revert_tag")
}

// PointTag is RestoreTag, but the audit log records the creation or move of a tag instead of
// its restoration.
func (c *Catalog) PointTag(ctx context.Context, path, tag string, d oci.Digest) error {
	return c.pointTag(ctx, path, tag, d, "create_tag")
}

func (c *Catalog) pointTag(ctx context.Context, path, tag string, d oci.Digest, kind string) error {
	c.cache.dropAll(path) // another repository may have this name by now
	r, err := c.lookUp(ctx, path)
	if err != nil {
		return err
	}
	err = c.change(ctx, path, c.cache.dropTags, func(ctx context.Context) error {
		return c.movingTags(ctx, path, []string{tag}, d, func() (repository, error) {
			return r, db.Retry(ctx, func() error {
				return c.putExisting(ctx, r, NewManifest{Repository: path}, manifestColumns{digest: d.Bytes(), tags: []string{tag}}, kind)
			})
		})
	})
	switch {
	case err == nil, isAnswer(err):
		return err
	case errors.Is(err, repositoryGone):
		return nameUnknown(path)
	case errors.Is(err, manifestGone):
		return oci.Errorf(oci.ManifestUnknown,
			"manifest %s is not in repository %s: it was never pushed there, or it has been deleted since, and then only a new push brings it back", d, path).
			WithDetail(map[string]string{"name": path, "digest": d.String()})
	}
	return fmt.Errorf("pointing tag %s of %s to a manifest: %w", tag, path, err)
}
