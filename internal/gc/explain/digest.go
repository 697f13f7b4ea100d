package explain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/gc"
	"github.com/purser-registry/purser/internal/oci"
)

// searched is how many repositories are searched for a manifest, and how many of those in the trash.
// Each takes a look-up, since no index has the digests of manifests without their repositories.
const searched = 10_000

// notABlob returns the error BLOB_UNKNOWN for a digest of which there is no blob. It says whether it is
// the digest of a manifest, and names repositories that have it, also those in the trash.
func notABlob(ctx context.Context, tx pgx.Tx, d oci.Digest) error {
	var looked int64
	var found []string
	err := tx.QueryRow(ctx, fmt.Sprintf(`
		WITH r AS MATERIALIZED (SELECT top_level_namespace_id, id, path FROM live_repositories LIMIT %d)
		SELECT (SELECT count(*) FROM r), ARRAY(
			SELECT r.path FROM r CROSS JOIN LATERAL (
				SELECT FROM manifests
				WHERE top_level_namespace_id = r.top_level_namespace_id AND repository_id = r.id AND digest = $1 OFFSET 0) m
			LIMIT %d)`, searched, explainFirst), d.Bytes()).Scan(&looked, &found)
	if err != nil {
		return fmt.Errorf("looking for repositories with the manifest: %w", err)
	}
	trash, trashLooked, err := manifestInTrash(ctx, tx, d)
	if err != nil {
		return fmt.Errorf("looking for the manifest in the trash: %w", err)
	}
	slices.Sort(found)
	detail := map[string]any{"digest": d.String(), "repositories": found}
	if len(trash) > 0 {
		detail["trash"] = trash
	}
	switch {
	case len(found) > 0:
		hint := ""
		if len(trash) > 0 {
			hint = "; what was deleted has it too: " + joined(trash)
		}
		return oci.Errorf(oci.BlobUnknown, "%s is not a blob, but a manifest of %s: name its repository too, as in %s@%s%s",
			d, strings.Join(found, ", "), found[0], d, hint).WithDetail(detail)
	case len(trash) > 0:
		return oci.Errorf(oci.BlobUnknown, "%s is not a blob, but a manifest; garbage collection keeps what was deleted: %s", d, joined(trash)).WithDetail(detail)
	case looked < searched && trashLooked < searched:
		return oci.Errorf(oci.BlobUnknown, "blob %s is not known to this registry, and no repository has a manifest with this digest: it was never pushed, or it has been deleted", d).
			WithDetail(detail)
	}
	return oci.Errorf(oci.BlobUnknown, "blob %s is not known to this registry; if it is a manifest's digest, name its repository too, as in REPOSITORY@%s: only %d repositories were searched for it",
		d, d, searched).WithDetail(detail)
}

// Tagged returns the digest of the manifest to which a tag points. It returns the error NAME_UNKNOWN if
// there is no such repository, which names a deleted one that has the tag, and MANIFEST_UNKNOWN if the
// repository doesn't have the tag.
func Tagged(ctx context.Context, c *gc.Collector, path, tag string) (d oci.Digest, err error) {
	err = c.Snapshot(ctx, func(tx pgx.Tx) error {
		r, err := findRepository(ctx, tx, path)
		if err != nil {
			return lookInTrash(ctx, tx, err, path, hasTag, tag)
		}
		var digest []byte
		err = tx.QueryRow(ctx, `
			SELECT m.digest FROM tags t
			JOIN manifests m ON m.top_level_namespace_id = $1 AND m.repository_id = $2 AND m.id = t.manifest_id
			WHERE t.top_level_namespace_id = $1 AND t.repository_id = $2 AND t.name = $3`, r.namespace, r.id, tag).Scan(&digest)
		if errors.Is(err, pgx.ErrNoRows) {
			return oci.Errorf(oci.ManifestUnknown, "repository %s has no tag %s", path, tag)
		}
		if err != nil {
			return err
		}
		d, err = oci.DigestFromBytes(digest)
		return err
	})
	if _, known := errors.AsType[*oci.Error](err); err != nil && !known {
		err = fmt.Errorf("looking for tag %s of %s: %w", tag, path, err)
	}
	return d, err
}
