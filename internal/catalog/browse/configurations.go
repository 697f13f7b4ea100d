package browse

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/oci"
)

// Configuration is the configuration of a manifest.
type Configuration struct {
	Digest oci.Digest
	// Platform is os/architecture or os/architecture/variant, as far as auto-pruning has needed it and
	// read it; "": the database doesn't know.
	Platform string
}

// Configurations returns the configurations of those of the manifests that have one, by the digests of the
// manifests. Error: NAME_UNKNOWN. OFFSET 0 in its SQL makes PostgreSQL look rows up by an index: see
// "Plans" in package db.
func (b *Browser) Configurations(ctx context.Context, path string, manifests []oci.Digest) (map[oci.Digest]Configuration, error) {
	r, err := b.lookUp(ctx, path)
	if err != nil {
		return nil, err
	}
	wanted := make([][]byte, len(manifests))
	for i, d := range manifests {
		wanted[i] = d.Bytes()
	}
	rows, err := b.db.Pool.Query(ctx, `
		SELECT m.digest, m.configuration, COALESCE(a.platform, '') FROM unnest($3::bytea[]) AS want (digest)
		CROSS JOIN LATERAL (
			SELECT digest, configuration_blob_digest AS configuration FROM manifests
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND digest = want.digest OFFSET 0) m
		LEFT JOIN LATERAL (SELECT platform FROM configurationattributes WHERE digest = m.configuration AND problem = '' OFFSET 0) a ON true
		WHERE m.configuration IS NOT NULL`, r.namespace, r.id, wanted)
	if err != nil {
		return nil, fmt.Errorf("looking for the configurations of manifests of %s: %w", path, err)
	}
	found := make(map[oci.Digest]Configuration, len(manifests))
	var raw, configuration []byte
	var c Configuration
	_, err = pgx.ForEachRow(rows, []any{&raw, &configuration, &c.Platform}, func() error {
		d, err := oci.DigestFromBytes(raw)
		if err == nil {
			c.Digest, err = oci.DigestFromBytes(configuration)
		}
		found[d] = c
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("looking for the configurations of manifests of %s: %w", path, err)
	}
	return found, nil
}
