package browse

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
)

// shownTags is how many of the tags that point to a manifest a search shows.
const shownTags = 3

// contentKeys are digests that a search has found, with the ids of the repositories that have them.
type contentKeys struct {
	repositories []int64
	digests      [][]byte
	cut          bool
}

// manifests finds manifests: those whose own digest is wanted, then those with a configuration or a
// layer whose digest is. Docker knows an image by the digest of its configuration.
func (s *search) manifests(ctx context.Context) error {
	if s.wanted.Digest.digits == "" {
		return nil
	}
	for _, find := range []func(context.Context) (list []ManifestFound, cut bool, err error){s.manifestsOfDigest, s.manifestsWithBlob} {
		list, cut, err := find(ctx)
		if err != nil {
			return err
		}
		room := s.n - len(s.found.Manifests)
		s.found.Manifests = append(s.found.Manifests, list[:min(room, len(list))]...)
		if s.found.More.Manifests = s.cut || cut || len(list) > room; len(list) > room {
			return nil
		}
	}
	return nil
}

func (s *search) manifestsOfDigest(ctx context.Context) ([]ManifestFound, bool, error) {
	sql := `
		SELECT r.id, m.digest FROM unnest(@places::bigint[]) AS own (id)
		CROSS JOIN LATERAL (SELECT id, top_level_namespace_id FROM repositories WHERE id = own.id AND deleted_at IS NULL OFFSET 0) r
		CROSS JOIN LATERAL (
			SELECT digest FROM manifests
			WHERE repository_id = r.id AND top_level_namespace_id = r.top_level_namespace_id AND digest BETWEEN @lowest AND @highest
			ORDER BY digest LIMIT @each) m
		LIMIT @candidates`
	if s.everywhere() {
		sql = `
			SELECT repository_id, digest FROM manifests
			WHERE digest BETWEEN @lowest AND @highest AND digest <> '' -- for the index of the search
			ORDER BY digest, repository_id LIMIT @candidates`
	}
	k, err := s.contentKeys(ctx, sql)
	if err != nil {
		return nil, false, err
	}
	list, err := s.describeFound(ctx, k, `
		SELECT r.path, m.digest, m.media_type, COALESCE(m.artifact_type, ''), NULL::bytea, ARRAY(
			SELECT name FROM tags WHERE top_level_namespace_id = r.top_level_namespace_id AND repository_id = r.id AND manifest_id BETWEEN m.id AND m.id
			ORDER BY manifest_id LIMIT @tags)
		FROM unnest(@repositories::bigint[], @digests::bytea[]) WITH ORDINALITY AS want (id, digest, nth)
		CROSS JOIN LATERAL (SELECT id, path, top_level_namespace_id FROM live_repositories WHERE id = want.id OFFSET 0) r
		CROSS JOIN LATERAL (
			SELECT id, digest, media_type, artifact_type FROM manifests
			WHERE top_level_namespace_id = r.top_level_namespace_id AND repository_id = r.id AND digest = want.digest OFFSET 0) m
		LIMIT @found`)
	return list, k.cut, err
}

// manifestsWithBlob finds manifests by a blob to which their repository is linked, one manifest for
// each blob and repository: such as has the blob as its configuration, else as a layer. The
// look-ups by the blob go on with the repository, so that they read no other's rows.
func (s *search) manifestsWithBlob(ctx context.Context) ([]ManifestFound, bool, error) {
	sql := `
		SELECT r.id, l.blob_digest FROM unnest(@places::bigint[]) AS own (id)
		CROSS JOIN LATERAL (SELECT id, top_level_namespace_id FROM repositories WHERE id = own.id AND deleted_at IS NULL OFFSET 0) r
		CROSS JOIN LATERAL (
			SELECT blob_digest FROM repository_blobs
			WHERE repository_id = r.id AND top_level_namespace_id = r.top_level_namespace_id AND blob_digest BETWEEN @lowest AND @highest
			ORDER BY blob_digest LIMIT @each) l
		LIMIT @candidates`
	if s.everywhere() {
		sql = `
			SELECT repository_id, blob_digest FROM repository_blobs
			WHERE blob_digest BETWEEN @lowest AND @highest ORDER BY blob_digest, repository_id LIMIT @candidates`
	}
	k, err := s.contentKeys(ctx, sql)
	if err != nil {
		return nil, false, err
	}
	list, err := s.describeFound(ctx, k, `
		SELECT r.path, m.digest, m.media_type, COALESCE(m.artifact_type, ''), want.digest, ARRAY(
			SELECT name FROM tags WHERE top_level_namespace_id = r.top_level_namespace_id AND repository_id = r.id AND manifest_id BETWEEN m.id AND m.id
			ORDER BY manifest_id LIMIT @tags)
		FROM unnest(@repositories::bigint[], @digests::bytea[]) WITH ORDINALITY AS want (id, digest, nth)
		CROSS JOIN LATERAL (SELECT id, path, top_level_namespace_id FROM live_repositories WHERE id = want.id OFFSET 0) r
		CROSS JOIN LATERAL (
			SELECT COALESCE(
				(SELECT id FROM manifests
				WHERE top_level_namespace_id = r.top_level_namespace_id AND configuration_blob_digest BETWEEN want.digest AND want.digest AND repository_id = r.id
				ORDER BY configuration_blob_digest, repository_id LIMIT 1),
				(SELECT manifest_id FROM layers
				WHERE top_level_namespace_id = r.top_level_namespace_id AND digest BETWEEN want.digest AND want.digest AND repository_id = r.id
				ORDER BY digest, repository_id LIMIT 1)) AS id) of
		CROSS JOIN LATERAL (
			SELECT id, digest, media_type, artifact_type FROM manifests
			WHERE top_level_namespace_id = r.top_level_namespace_id AND repository_id = r.id AND id BETWEEN of.id AND of.id ORDER BY id LIMIT 1) m
		LIMIT @found`)
	return list, k.cut, err
}

func (s *search) contentKeys(ctx context.Context, sql string) (k contentKeys, err error) {
	lowest, highest, err := s.wanted.Digest.bounds()
	if err != nil {
		return k, err
	}
	rows, err := s.db.Pool.Query(ctx, sql, db.SharedArgs{
		"lowest": lowest, "highest": highest, "places": s.places(), "each": s.n + 1, "candidates": maxCandidates,
	})
	if err != nil {
		return k, err
	}
	var repository int64
	var digest []byte
	_, err = pgx.ForEachRow(rows, []any{&repository, &digest}, func() error {
		k.repositories, k.digests = append(k.repositories, repository), append(k.digests, append([]byte(nil), digest...))
		return nil
	})
	k.cut = len(k.digests) == maxCandidates
	return k, err
}

// describeFound returns the first n+1 of the manifests that still exist, in repositories that do.
func (s *search) describeFound(ctx context.Context, k contentKeys, sql string) ([]ManifestFound, error) {
	if len(k.digests) == 0 {
		return nil, nil
	}
	rows, err := s.db.Pool.Query(ctx, sql, db.SharedArgs{"repositories": k.repositories, "digests": k.digests, "tags": shownTags, "found": s.n + 1})
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (m ManifestFound, err error) {
		var raw, blob []byte
		if err := row.Scan(&m.Repository, &raw, &m.MediaType, &m.ArtifactType, &blob, &m.Tags); err != nil {
			return m, err
		}
		if m.Digest, err = digestOf(raw); err == nil {
			m.Blob, err = digestOf(blob)
		}
		return m, err
	})
}
