package snapshot

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// CreatedTags calls `each` with the name of each tag, in the order of the names, and when the tag's row was
// created.
func (s *Snapshot) CreatedTags(ctx context.Context, each func(name string, created time.Time)) error {
	rows, err := s.Tx.Query(ctx, "SELECT name, created_at FROM tags WHERE repository_id = $2 AND top_level_namespace_id = $1 ORDER BY name",
		s.target.NamespaceID, s.target.ID)
	if err != nil {
		return s.failed(err)
	}
	var name string
	var created time.Time
	_, err = pgx.ForEachRow(rows, []any{&name, &created}, func() error {
		each(name, created)
		return nil
	})
	if err != nil {
		return s.failed(err)
	}
	return nil
}

// PastManifests calls `each` with the index, the id and the subject (as TagRow.Subject) of
// those of the given digests that the repository has.
func (s *Snapshot) PastManifests(ctx context.Context, digests [][]byte, each func(place int, id, subject int64)) error {
	rows, err := s.Tx.Query(ctx, `
		SELECT want.place - 1, m.id, CASE WHEN m.subject_digest IS NOT NULL THEN COALESCE(subject.id, -1) ELSE 0 END
		FROM unnest($3::bytea[]) WITH ORDINALITY AS want (digest, place)
		CROSS JOIN LATERAL (
			SELECT id, subject_digest FROM manifests
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND digest BETWEEN want.digest AND want.digest
			ORDER BY digest LIMIT 1) m
		LEFT JOIN LATERAL (
			SELECT id FROM manifests
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND digest BETWEEN m.subject_digest AND m.subject_digest
			ORDER BY digest LIMIT 1) subject ON true`, s.target.NamespaceID, s.target.ID, digests)
	if err != nil {
		return s.failed(err)
	}
	var place int
	var id, subject int64
	_, err = pgx.ForEachRow(rows, []any{&place, &id, &subject}, func() error {
		each(place, id, subject)
		return nil
	})
	if err != nil {
		return fmt.Errorf("reading manifests of former tags: %w", err)
	}
	return nil
}

// Created calls `each` with the time at which each of the given manifests was stored.
func (s *Snapshot) Created(ctx context.Context, manifests []int64, each func(id int64, created time.Time)) error {
	rows, err := s.Tx.Query(ctx, `
		SELECT want.id, m.created_at FROM unnest($3::bigint[]) AS want (id)
		CROSS JOIN LATERAL (
			SELECT created_at FROM manifests
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND id BETWEEN want.id AND want.id
			ORDER BY id LIMIT 1) m`, s.target.NamespaceID, s.target.ID, manifests)
	if err != nil {
		return s.failed(err)
	}
	var id int64
	var created time.Time
	_, err = pgx.ForEachRow(rows, []any{&id, &created}, func() error {
		each(id, created)
		return nil
	})
	if err != nil {
		return s.failed(err)
	}
	return nil
}
