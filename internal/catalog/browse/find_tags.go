package browse

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
)

// tagKeys are tags that a search has found, in the order in which they are shown: the ids of their
// repositories, and their names.
type tagKeys struct {
	repositories []int64
	names        []string
	cut          bool // not every name was compared
}

func (k *tagKeys) len() int { return len(k.names) }

// tags finds tags: those whose names begin with the text, then those that have it elsewhere.
func (s *search) tags(ctx context.Context) error {
	text := s.wanted.Tag
	if s.wanted.Repository == "" && text == "" {
		text = s.wanted.Name
	}
	if text == "" || strings.ContainsAny(text, "/:@") {
		return nil
	}
	for _, find := range []func(context.Context, string) (tagKeys, error){s.tagsBeginning, s.tagsContaining} {
		keys, err := find(ctx, text)
		if err != nil {
			return err
		}
		list, err := s.describeTags(ctx, keys)
		if err != nil {
			return err
		}
		room := s.n - len(s.found.Tags)
		s.found.Tags = append(s.found.Tags, list[:min(room, len(list))]...)
		if s.found.More.Tags = s.cut || keys.cut || len(list) > room; len(list) > room {
			return nil
		}
	}
	return nil
}

// tagsBeginning returns tags whose names begin with the text, first those that have this name. These are
// looked for in every place, however many others there are. OFFSET 0 in its SQL makes PostgreSQL look rows
// up by an index: see "Plans" in package db.
func (s *search) tagsBeginning(ctx context.Context, text string) (tagKeys, error) {
	if s.everywhere() {
		return s.tagKeys(ctx, maxCandidates, `
			SELECT repository_id, name, false FROM tags
			WHERE name >= @text AND name < @end AND name <> '' -- for the index of the search
			ORDER BY name, repository_id LIMIT @candidates`, text)
	}
	return s.tagKeys(ctx, maxCandidates, `
		WITH place AS MATERIALIZED (
			SELECT own.nth, r.id, r.top_level_namespace_id FROM unnest(@places::bigint[]) WITH ORDINALITY AS own (id, nth)
			CROSS JOIN LATERAL (SELECT id, top_level_namespace_id FROM repositories WHERE id = own.id AND deleted_at IS NULL OFFSET 0) r)
		SELECT id, name, false FROM (
			(SELECT p.nth, p.id, t.name FROM place p
			CROSS JOIN LATERAL (
				SELECT name FROM tags
				WHERE repository_id = p.id AND top_level_namespace_id = p.top_level_namespace_id AND name = @text OFFSET 0) t
			LIMIT @candidates)
			UNION ALL
			(SELECT p.nth, p.id, t.name FROM place p
			CROSS JOIN LATERAL (
				SELECT name FROM tags
				WHERE repository_id = p.id AND top_level_namespace_id = p.top_level_namespace_id AND name > @text AND name < @end
				ORDER BY name LIMIT @each) t
			LIMIT @candidates)) found
		ORDER BY name <> @text, nth, name LIMIT @candidates`, text)
}

// tagsContaining returns tags whose names contain the text, but not at the beginning. It compares
// maxTagNames names at most: the row after these has only its number.
func (s *search) tagsContaining(ctx context.Context, text string) (tagKeys, error) {
	if s.everywhere() {
		return s.tagKeys(ctx, s.n+1, `
			SELECT repository_id, name, nth > @most FROM (
				SELECT repository_id, name, row_number() OVER () AS nth FROM (
					SELECT repository_id, name FROM tags WHERE name <> '' LIMIT @most + 1) names) numbered
			WHERE position(@text IN name) > 1 OR nth > @most LIMIT @candidates`, text)
	}
	return s.tagKeys(ctx, s.n+1, `
		SELECT repository_id, name, nth > @most FROM (
			SELECT repository_id, name, row_number() OVER () AS nth FROM (
				SELECT r.id AS repository_id, t.name FROM unnest(@places::bigint[]) AS own (id)
				CROSS JOIN LATERAL (SELECT id, top_level_namespace_id FROM repositories WHERE id = own.id AND deleted_at IS NULL OFFSET 0) r
				CROSS JOIN LATERAL (
					SELECT name FROM tags
					WHERE repository_id = r.id AND top_level_namespace_id = r.top_level_namespace_id ORDER BY name LIMIT @most + 1) t
				LIMIT @most + 1) names) numbered
		WHERE position(@text IN name) > 1 OR nth > @most LIMIT @candidates`, text)
}

func (s *search) tagKeys(ctx context.Context, candidates int, sql, text string) (k tagKeys, err error) {
	rows, err := s.db.Pool.Query(ctx, sql, db.SharedArgs{
		"text": text, "end": text + afterNames, "places": s.places(), "each": s.n + 1, "candidates": candidates, "most": maxTagNames,
	})
	if err != nil {
		return k, err
	}
	var repository int64
	var name string
	var last bool
	_, err = pgx.ForEachRow(rows, []any{&repository, &name, &last}, func() error {
		if last {
			k.cut = true
			return nil
		}
		k.repositories, k.names = append(k.repositories, repository), append(k.names, name)
		return nil
	})
	k.cut = k.cut || candidates == maxCandidates && k.len() == candidates
	return k, err
}

// describeTags returns the first n+1 of the tags that still exist, in repositories that do. OFFSET
// 0 in its SQL makes PostgreSQL look rows up by an index: see "Plans" in package db.
func (s *search) describeTags(ctx context.Context, k tagKeys) ([]TagFound, error) {
	if k.len() == 0 {
		return nil, nil
	}
	rows, err := s.db.Pool.Query(ctx, `
		SELECT r.path, t.name, m.digest, t.pushed
		FROM unnest(@repositories::bigint[], @names::text[]) WITH ORDINALITY AS want (id, name, nth)
		CROSS JOIN LATERAL (SELECT id, path, top_level_namespace_id FROM live_repositories WHERE id = want.id OFFSET 0) r
		CROSS JOIN LATERAL (
			SELECT name, manifest_id, COALESCE(updated_at, created_at) AS pushed FROM tags
			WHERE repository_id = r.id AND top_level_namespace_id = r.top_level_namespace_id AND name = want.name OFFSET 0) t
		CROSS JOIN LATERAL (
			SELECT digest FROM manifests
			WHERE top_level_namespace_id = r.top_level_namespace_id AND repository_id = r.id AND id BETWEEN t.manifest_id AND t.manifest_id
			ORDER BY id LIMIT 1) m
		LIMIT @found`, db.SharedArgs{"repositories": k.repositories, "names": k.names, "found": s.n + 1})
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (t TagFound, err error) {
		var raw []byte
		if err := row.Scan(&t.Repository, &t.Name, &raw, &t.PushedAt); err != nil {
			return t, err
		}
		t.PushedAt = t.PushedAt.UTC()
		t.Digest, err = digestOf(raw)
		return t, err
	})
}
