package autoprune

import (
	"context"
	"maps"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// Contents returns what the given manifests store.
func (s *snapshot) Contents(ctx context.Context, manifests []int64) ([]Content, error) {
	rows, err := s.tx.Query(ctx, `
		SELECT want.place - 1, m.size, m.configuration_blob_digest FROM unnest($3::bigint[]) WITH ORDINALITY AS want (id, place)
		CROSS JOIN LATERAL (
			SELECT octet_length(payload) AS size, configuration_blob_digest FROM manifests
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND id BETWEEN want.id AND want.id
			ORDER BY id LIMIT 1) m`, s.target.NamespaceID, s.target.ID, manifests)
	if err != nil {
		return nil, s.failed(err)
	}
	list := make([]Content, len(manifests))
	for i, id := range manifests {
		list[i].Manifest = id
	}
	var place int
	var size int64
	var digest []byte
	_, err = pgx.ForEachRow(rows, []any{&place, &size, &digest}, func() error {
		if list[place].Size = size; digest != nil {
			list[place].Blobs = append(list[place].Blobs, string(digest))
		}
		return nil
	})
	if err != nil {
		return nil, s.failed(err)
	}
	rows, err = s.tx.Query(ctx, `
		SELECT want.place - 1, l.digest FROM unnest($3::bigint[]) WITH ORDINALITY AS want (id, place)
		CROSS JOIN LATERAL (
			SELECT digest FROM layers
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND manifest_id = want.id
			ORDER BY digest OFFSET 0) l`, s.target.NamespaceID, s.target.ID, manifests)
	if err != nil {
		return nil, s.failed(err)
	}
	_, err = pgx.ForEachRow(rows, []any{&place, (*pgtype.DriverBytes)(&digest)}, func() error {
		list[place].Blobs = append(list[place].Blobs, string(digest))
		return nil
	})
	if err != nil {
		return nil, s.failed(err)
	}
	return list, nil
}

// BlobSizes returns the sizes of blobs in bytes, by digest.
func (s *snapshot) BlobSizes(ctx context.Context, blobs []string) (map[string]int64, error) {
	digests := make([][]byte, len(blobs))
	for i, b := range blobs {
		digests[i] = []byte(b)
	}
	rows, err := s.tx.Query(ctx, `
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

// Kept returns the references from the given manifests to those that they keep from garbage
// collection: an index keeps the manifests that it lists, and a subject its referrers.
func (s *snapshot) Kept(ctx context.Context, manifests []int64) ([]Reference, error) {
	var list []Reference
	for _, read := range []func(context.Context, []int64) ([]link, error){s.Children, s.Referrers} {
		links, err := read(ctx, manifests)
		if err != nil {
			return nil, err
		}
		for _, l := range links {
			list = append(list, Reference{Parent: l.Keeper, Child: l.Kept})
		}
	}
	return list, nil
}

// withContents lets the repository tell what manifests store. It calls `before` before each
// statement; an error of it ends the evaluation.
func (s *snapshot) withContents(ctx context.Context, r Repository, before func(context.Context) error) Repository {
	r.Kept = func(manifests []int64) ([]Reference, error) {
		if err := before(ctx); err != nil {
			return nil, err
		}
		return s.Kept(ctx, manifests)
	}
	r.Contents = func(manifests []int64) ([]Content, error) {
		if err := before(ctx); err != nil {
			return nil, err
		}
		return s.Contents(ctx, manifests)
	}
	r.BlobSizes = func(blobs []string) (map[string]int64, error) {
		if err := before(ctx); err != nil {
			return nil, err
		}
		return s.BlobSizes(ctx, blobs)
	}
	return r
}

// remembered asks for what wasn't asked for before, and remembers the answers. A key without an
// answer has the zero value.
type remembered[K comparable, V any] map[K]V

func (m remembered[K, V]) of(keys []K, ask func([]K) error) error {
	var asked []K
	for _, k := range keys {
		if _, known := m[k]; !known {
			var none V
			m[k] = none
			asked = append(asked, k)
		}
	}
	if len(asked) == 0 {
		return nil
	}
	return ask(asked)
}

// remember lets the repository answer from memory what it was asked before. A forecast judges
// the same manifests on many days.
func (h *history) remember(r Repository) Repository {
	kept, contents, sizes := r.Kept, r.Contents, r.BlobSizes
	r.Kept = func(manifests []int64) (list []Reference, err error) {
		err = h.kept.of(manifests, func(asked []int64) error {
			found, err := kept(asked)
			for _, one := range found {
				h.kept[one.Parent] = append(h.kept[one.Parent], one)
			}
			return err
		})
		for _, id := range manifests {
			list = append(list, h.kept[id]...)
		}
		return list, err
	}
	r.Contents = func(manifests []int64) (list []Content, err error) {
		err = h.contents.of(manifests, func(asked []int64) error {
			found, err := contents(asked)
			for _, one := range found {
				h.contents[one.Manifest] = one
			}
			return err
		})
		for _, id := range manifests {
			list = append(list, h.contents[id])
		}
		return list, err
	}
	r.BlobSizes = func(blobs []string) (map[string]int64, error) {
		err := h.sizes.of(blobs, func(asked []string) error {
			found, err := sizes(asked)
			maps.Copy(h.sizes, found)
			return err
		})
		list := make(map[string]int64, len(blobs))
		for _, b := range blobs {
			list[b] = h.sizes[b]
		}
		return list, err
	}
	return r
}
