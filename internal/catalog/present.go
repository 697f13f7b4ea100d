package catalog

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/oci"
)

// Present says which of the tags and manifests that a caller has named exist in a repository.
type Present struct {
	Repository int64
	Tags       map[string]oci.Digest // with the manifests that they point to
	Manifests  map[oci.Digest]bool
}

// Present looks up the given tags and manifests in a repository. A caller may have their names
// from a list that is out of date, such as statistics. Error: NAME_UNKNOWN. OFFSET 0 in its
// SQL makes PostgreSQL look rows up by an index: see "Plans" in package db.
func (c *Catalog) Present(ctx context.Context, path string, tags []string, manifests []oci.Digest) (Present, error) {
	p := Present{Tags: make(map[string]oci.Digest), Manifests: make(map[oci.Digest]bool)}
	failed := func(err error) (Present, error) {
		return p, fmt.Errorf("looking for tags and manifests of %s: %w", path, err)
	}
	var namespace int64
	err := c.db.Pool.QueryRow(ctx, "SELECT top_level_namespace_id, id FROM live_repositories WHERE path = $1", path).
		Scan(&namespace, &p.Repository)
	if isNoRows(err) {
		return p, NameUnknown(path)
	}
	if err != nil {
		return failed(err)
	}
	var name string
	var raw []byte
	if len(tags) > 0 {
		rows, err := c.db.Pool.Query(ctx, `
			SELECT t.name, m.digest FROM unnest($3::text[]) AS want (name)
			CROSS JOIN LATERAL (
				SELECT name, manifest_id FROM tags
				WHERE repository_id = $2 AND top_level_namespace_id = $1 AND name = want.name OFFSET 0) t
			CROSS JOIN LATERAL (
				SELECT digest FROM manifests
				WHERE top_level_namespace_id = $1 AND repository_id = $2 AND id = t.manifest_id OFFSET 0) m`,
			namespace, p.Repository, tags)
		if err != nil {
			return failed(err)
		}
		if _, err := pgx.ForEachRow(rows, []any{&name, &raw}, func() (err error) {
			p.Tags[name], err = oci.DigestFromBytes(raw)
			return err
		}); err != nil {
			return failed(err)
		}
	}
	wanted := make([][]byte, len(manifests))
	for i, d := range manifests {
		wanted[i] = d.Bytes()
	}
	if len(wanted) > 0 {
		rows, err := c.db.Pool.Query(ctx, `
			SELECT m.digest FROM unnest($3::bytea[]) AS want (digest)
			CROSS JOIN LATERAL (
				SELECT digest FROM manifests
				WHERE top_level_namespace_id = $1 AND repository_id = $2 AND digest = want.digest OFFSET 0) m`,
			namespace, p.Repository, wanted)
		if err != nil {
			return failed(err)
		}
		if _, err := pgx.ForEachRow(rows, []any{&raw}, func() error {
			d, err := oci.DigestFromBytes(raw)
			p.Manifests[d] = true
			return err
		}); err != nil {
			return failed(err)
		}
	}
	return p, nil
}

// PresentTags returns for each i whether the tag names[i] exists in the repository with the id
// repositories[i]. What is in the trash exists: it may be restored, and needs its statistics then.
// PresentTags returns false for a repository that was deleted for good.
func (c *Catalog) PresentTags(ctx context.Context, repositories []int64, names []string) ([]bool, error) {
	return c.present(ctx, `
		SELECT want.nth FROM unnest($1::bigint[], $2::text[]) WITH ORDINALITY AS want (repository, name, nth)
		CROSS JOIN LATERAL (SELECT top_level_namespace_id FROM named_repositories WHERE id = want.repository OFFSET 0) r
		CROSS JOIN LATERAL (
			SELECT FROM tags
			WHERE repository_id = want.repository AND top_level_namespace_id = r.top_level_namespace_id AND name = want.name
			OFFSET 0) found`, repositories, names)
}

// PresentManifests returns for each i whether manifests[i] exists in the repository with the
// id repositories[i]. As for PresentTags, what is in the trash exists.
func (c *Catalog) PresentManifests(ctx context.Context, repositories []int64, manifests []oci.Digest) ([]bool, error) {
	raw := make([][]byte, len(manifests))
	for i, d := range manifests {
		raw[i] = d.Bytes()
	}
	return c.present(ctx, `
		SELECT want.nth FROM unnest($1::bigint[], $2::bytea[]) WITH ORDINALITY AS want (repository, digest, nth)
		CROSS JOIN LATERAL (SELECT top_level_namespace_id FROM named_repositories WHERE id = want.repository OFFSET 0) r
		CROSS JOIN LATERAL (
			SELECT FROM manifests
			WHERE top_level_namespace_id = r.top_level_namespace_id AND repository_id = want.repository AND digest = want.digest
			OFFSET 0) found`, repositories, raw)
}

// present runs the statement `sql` for a list of repositories and a list of `values`, tags or
// manifests. The statement returns the positions, counted from 1, of those values that exist
// in their repositories. present returns for each value whether it exists.
func (c *Catalog) present(ctx context.Context, sql string, repositories []int64, values any) ([]bool, error) {
	rows, err := c.db.Pool.Query(ctx, sql, repositories, values)
	if err != nil {
		return nil, fmt.Errorf("looking for tags and manifests: %w", err)
	}
	here := make([]bool, len(repositories))
	var nth int64
	if _, err := pgx.ForEachRow(rows, []any{&nth}, func() error {
		here[nth-1] = true
		return nil
	}); err != nil {
		return nil, fmt.Errorf("looking for tags and manifests: %w", err)
	}
	return here, nil
}
