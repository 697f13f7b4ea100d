package browse

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// A manifest declares the size of each blob and manifest that it refers to, and the declared
// sizes may be wrong: other registries store such manifests, so this one does too. Therefore
// the registry adds up the stored sizes and not the declared ones. PostgreSQL's sum of bigint
// values is numeric; it is capped at the largest bigint, 9223372036854775807, before it is
// converted.

// Reference is content that a manifest of a repository refers to.
type Reference struct {
	in       repository
	Digest   oci.Digest
	Manifest bool // of the same repository; else a blob
}

// References lists those blobs and manifests to which a manifest of a repository refers and
// which a registry stores: configuration and layers, an index's manifests, and the subject.
// Foreign layers are left out.
func References(r catalog.Repository, m *oci.Manifest) []Reference {
	in := repository{r.NamespaceID, r.ID}
	var list []Reference
	if m.Config != nil {
		list = append(list, Reference{in, m.Config.Digest, false})
	}
	for _, d := range m.DistinctLayers() {
		if !d.Foreign() {
			list = append(list, Reference{in, d.Digest, false})
		}
	}
	for _, d := range m.DistinctManifests() {
		list = append(list, Reference{in, d.Digest, d.IsManifest()})
	}
	if m.Subject != nil {
		list = append(list, Reference{in, m.Subject.Digest, true})
	}
	return list
}

// SizesOf returns, for each item of list, the size in bytes of the stored blob or manifest, or
// -1 if it doesn't exist. It takes one round trip. OFFSET 0 in its SQL makes PostgreSQL look
// rows up by an index: see "Plans" in package db.
func (b *Browser) SizesOf(ctx context.Context, list []Reference) ([]int64, error) {
	sizes := make([]int64, len(list))
	var blobs, manifests [][]byte
	var blobsAt, manifestsAt []int
	var namespaces, repositories []int64
	for i, r := range list {
		sizes[i] = -1
		if r.Manifest {
			manifests, manifestsAt = append(manifests, r.Digest.Bytes()), append(manifestsAt, i)
			namespaces, repositories = append(namespaces, r.in.namespace), append(repositories, r.in.id)
		} else {
			blobs, blobsAt = append(blobs, r.Digest.Bytes()), append(blobsAt, i)
		}
	}
	questions := new(db.Batch)
	ask := func(at []int, sql string, args ...any) {
		if len(at) == 0 {
			return
		}
		questions.Queue(sql, args...).Query(func(rows pgx.Rows) error {
			var nth, size int64
			_, err := pgx.ForEachRow(rows, []any{&nth, &size}, func() error {
				sizes[at[nth-1]] = size
				return nil
			})
			return err
		})
	}
	ask(blobsAt, `
		SELECT want.nth, b.size FROM unnest($1::bytea[]) WITH ORDINALITY AS want (digest, nth)
		CROSS JOIN LATERAL (SELECT size FROM blobs WHERE digest = want.digest OFFSET 0) b`, blobs)
	ask(manifestsAt, `
		SELECT want.nth, m.size
		FROM unnest($1::bigint[], $2::bigint[], $3::bytea[]) WITH ORDINALITY AS want (namespace_id, repository_id, digest, nth)
		CROSS JOIN LATERAL (
			SELECT octet_length(payload)::bigint AS size FROM manifests
			WHERE top_level_namespace_id = want.namespace_id AND repository_id = want.repository_id
				AND digest = want.digest OFFSET 0) m`, namespaces, repositories, manifests)
	if questions.Len() == 0 {
		return sizes, nil
	}
	if err := questions.Send(ctx, b.db.Pool); err != nil {
		return nil, fmt.Errorf("looking for the sizes of what manifests refer to: %w", err)
	}
	return sizes, nil
}

// StoredSizes returns the stored sizes of the blobs and manifests to which manifest m refers:
// configuration, layers, an index's manifests and subject. It leaves out those that the
// registry doesn't have.
func (b *Browser) StoredSizes(ctx context.Context, m ManifestDetails, content *oci.Manifest) (map[oci.Digest]int64, error) {
	list := References(catalog.Repository{NamespaceID: m.in.namespace, ID: m.in.id}, content)
	sizes, err := b.SizesOf(ctx, list)
	if err != nil {
		return nil, err
	}
	found := make(map[oci.Digest]int64, len(list))
	for i, r := range list {
		if sizes[i] >= 0 {
			found[r.Digest] = sizes[i]
		}
	}
	return found, nil
}
