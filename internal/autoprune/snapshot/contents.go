package snapshot

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/purser-registry/purser/internal/judge"
	"github.com/purser-registry/purser/internal/oci"
)

// contents returns what the given manifests store.
func (s *Snapshot) contents(ctx context.Context, manifests []int64) ([]judge.Content, error) {
	rows, err := s.Tx.Query(ctx, `
		SELECT want.place - 1, m.size, m.configuration || COALESCE(l.layers, '')
		FROM unnest($3::bigint[]) WITH ORDINALITY AS want (id, place)
		CROSS JOIN LATERAL (
			SELECT octet_length(payload) AS size,
				COALESCE(configuration_blob_digest || int8send(COALESCE(configuration_blob_size, -1)), '') AS configuration
			FROM manifests
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND id BETWEEN want.id AND want.id
			ORDER BY id LIMIT 1) m
		CROSS JOIN LATERAL (
			SELECT string_agg(digest || int8send(COALESCE(blob_size, -1)), '') AS layers FROM (
				SELECT digest, blob_size FROM layers
				WHERE top_level_namespace_id = $1 AND repository_id = $2 AND manifest_id = want.id
				ORDER BY digest OFFSET 0) d) l`, s.target.NamespaceID, s.target.ID, manifests)
	if err != nil {
		return nil, s.failed(err)
	}
	list := make([]judge.Content, len(manifests))
	for i, id := range manifests {
		list[i].Manifest = id
	}
	var place int
	var size int64
	var blobs []byte
	_, err = pgx.ForEachRow(rows, []any{&place, &size, (*pgtype.DriverBytes)(&blobs)}, func() error {
		list[place].Size = size
		list[place].Blobs, list[place].Sizes, err = cutBlobs(string(blobs))
		return err
	})
	if err != nil {
		return nil, s.failed(err)
	}
	return list, nil
}

// cutBlobs divides digests with sizes that stand one after the other, each a digest in the form of
// oci.Digest.Bytes and then the size in eight bytes, -1 if it isn't known.
func cutBlobs(all string) (blobs []string, sizes []int64, err error) {
	n := len(all) / 41
	blobs, sizes = make([]string, 0, n), make([]int64, 0, n)
	for len(all) > 0 {
		end := 1 + oci.Algorithm(all[0]).Size()
		if end == 1 || len(all) < end+8 {
			return nil, nil, errors.New("a blob has a digest of an unknown algorithm")
		}
		size := int64(0)
		for _, b := range []byte(all[end : end+8]) {
			size = size<<8 | int64(b)
		}
		blobs, sizes, all = append(blobs, all[:end]), append(sizes, size), all[end+8:]
	}
	return blobs, sizes, nil
}

// blobSizes returns the sizes of blobs in bytes, by digest.
func (s *Snapshot) blobSizes(ctx context.Context, blobs []string) (map[string]int64, error) {
	digests := make([][]byte, len(blobs))
	for i, b := range blobs {
		digests[i] = []byte(b)
	}
	rows, err := s.Tx.Query(ctx, `
		SELECT want.place - 1, b.size FROM unnest($1::bytea[]) WITH ORDINALITY AS want (digest, place)
		CROSS JOIN LATERAL (SELECT size FROM blobs WHERE digest = want.digest OFFSET 0) b`, digests)
	if err != nil {
		return nil, s.failed(err)
	}
	sizes := make(map[string]int64, len(blobs))
	var place int
	var size int64
	_, err = pgx.ForEachRow(rows, []any{&place, &size}, func() error {
		sizes[blobs[place]] = size
		return nil
	})
	if err != nil {
		return nil, s.failed(err)
	}
	return sizes, nil
}

// kept returns the references from the given manifests to those that they keep from garbage
// collection: an index keeps the manifests that it lists, and a subject its referrers.
func (s *Snapshot) kept(ctx context.Context, manifests []int64) ([]judge.Reference, error) {
	var list []judge.Reference
	for _, read := range []func(context.Context, []int64) ([]Link, error){s.children, s.referrers} {
		links, err := read(ctx, manifests)
		if err != nil {
			return nil, err
		}
		for _, l := range links {
			list = append(list, judge.Reference{Parent: l.Keeper, Child: l.Kept})
		}
	}
	return list, nil
}

// WithContents lets the repository tell what manifests store. It calls `before` before each
// statement; an error of it ends the evaluation.
func (s *Snapshot) WithContents(ctx context.Context, r judge.Repository, before func(context.Context) error) judge.Repository {
	r.Kept = func(manifests []int64) ([]judge.Reference, error) {
		if err := before(ctx); err != nil {
			return nil, err
		}
		return s.kept(ctx, manifests)
	}
	r.Contents = func(manifests []int64) ([]judge.Content, error) {
		if err := before(ctx); err != nil {
			return nil, err
		}
		return s.contents(ctx, manifests)
	}
	r.BlobSizes = func(blobs []string) (map[string]int64, error) {
		if err := before(ctx); err != nil {
			return nil, err
		}
		return s.blobSizes(ctx, blobs)
	}
	return r
}
