package check

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/oci"
)

// copiedSizePage is how many manifests one statement compares.
const copiedSizePage = 500

// copiedSize is a size of a blob that differs from the blob's row, in the rows of a manifest.
type copiedSize struct {
	manifestKey
	digest         []byte
	copied, stored int64
}

// copiedSizes compares the sizes of blobs that layers and manifests have copies of with the blobs'
// rows. A put copies them, and a trigger keeps them equal; they differ only if somebody has changed
// rows by hand. Previews and policies by bytes would then add up the wrong sizes.
func (k *checker) copiedSizes(ctx context.Context) error {
	for after := (manifestKey{}); ; {
		wrong, last, err := k.copiedSizePage(ctx, after)
		if err != nil {
			return fmt.Errorf("comparing the copied sizes of blobs: %w", err)
		}
		for _, w := range wrong {
			if err := k.foundCopiedSize(ctx, w); err != nil {
				return fmt.Errorf("repairing the copied size of a blob: %w", err)
			}
		}
		if last == nil {
			return nil
		}
		after = *last
	}
}

// copiedSizePage compares the next manifests in the order of their keys. `last` is the last of them,
// nil if there are no more.
func (k *checker) copiedSizePage(ctx context.Context, after manifestKey) (wrong []copiedSize, last *manifestKey, err error) {
	err = k.opt.Catalog.DB().Tx(ctx, func(tx pgx.Tx) error {
		wrong, last = nil, nil
		_, err := tx.Exec(ctx, "SELECT set_config(name, 'off', true) FROM unnest(ARRAY['enable_seqscan', 'enable_bitmapscan']) AS name")
		if err != nil {
			return err
		}
		rows, err := tx.Query(ctx, `
			SELECT m.id, m.repository_id, m.top_level_namespace_id, w.digest, COALESCE(w.copied, 0), COALESCE(b.size, 0)
			FROM (
				SELECT id, repository_id, top_level_namespace_id, configuration_blob_digest, configuration_blob_size FROM manifests
				WHERE (id, repository_id, top_level_namespace_id) > ($1::bigint, $2::bigint, $3::bigint)
				ORDER BY id, repository_id, top_level_namespace_id LIMIT $4) m
			LEFT JOIN LATERAL (
				SELECT c.digest, c.copied FROM (
					SELECT digest, blob_size AS copied FROM layers
					WHERE top_level_namespace_id = m.top_level_namespace_id AND repository_id = m.repository_id AND manifest_id = m.id
					UNION ALL SELECT m.configuration_blob_digest, m.configuration_blob_size OFFSET 0) c
				WHERE c.copied <> (SELECT size FROM blobs WHERE digest = c.digest OFFSET 0)) w ON true
			LEFT JOIN LATERAL (SELECT size FROM blobs WHERE digest = w.digest OFFSET 0) b ON true
			ORDER BY m.id, m.repository_id, m.top_level_namespace_id`,
			after.id, after.in.ID, after.in.NamespaceID, copiedSizePage)
		if err != nil {
			return err
		}
		var w copiedSize
		_, err = pgx.ForEachRow(rows, []any{&w.id, &w.in.ID, &w.in.NamespaceID, &w.digest, &w.copied, &w.stored}, func() error {
			key := w.manifestKey
			if last = &key; w.digest != nil {
				wrong = append(wrong, w)
			}
			return nil
		})
		return err
	})
	return wrong, last, err
}

// foundCopiedSize reports a wrong size, and in a repair copies the size once more. As a put does, it
// locks the blob's row first: see gc_track_blob_sizes.
func (k *checker) foundCopiedSize(ctx context.Context, w copiedSize) error {
	digest, err := oci.DigestFromBytes(w.digest)
	if err != nil {
		return err
	}
	f := Finding{Problem: CopiedSize, Digest: digest, Size: w.stored, Detail: fmt.Sprintf(
		"manifest %d of repository %d says that the blob has %d bytes; it has %d", w.id, w.in.ID, w.copied, w.stored)}
	if k.opt.Repair {
		err := k.opt.Catalog.DB().Tx(ctx, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "SELECT FROM blobs WHERE digest = $1 FOR KEY SHARE", w.digest); err != nil {
				return err
			}
			for _, sql := range []string{
				`UPDATE layers SET blob_size = (SELECT size FROM blobs WHERE digest = $4)
				WHERE top_level_namespace_id = $1 AND repository_id = $2 AND manifest_id = $3 AND digest = $4`,
				`UPDATE manifests SET configuration_blob_size = (SELECT size FROM blobs WHERE digest = $4)
				WHERE top_level_namespace_id = $1 AND repository_id = $2 AND id = $3 AND configuration_blob_digest = $4`,
			} {
				if _, err := tx.Exec(ctx, sql, w.in.NamespaceID, w.in.ID, w.id, w.digest); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		f.Repaired = true
	}
	k.add(f)
	return nil
}
