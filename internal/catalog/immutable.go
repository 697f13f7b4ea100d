package catalog

import (
	"context"
	"fmt"
	"net/http"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// An immutable tag is protected as if a rule matched it alone: nobody may point it to another
// manifest or delete it, and it has no date of expiration. A push of an image with a label may make
// its tag immutable (labels.go), or a client (SetTagImmutable), who also undoes it.

// immutableRefusal returns the error for a client that tried to move or delete an immutable tag:
// see protection.Rule.Refusal.
func immutableRefusal(path, tag, what, wayOut string) error {
	return oci.Errorf(oci.Denied, "tag %s of %s can't be %s: it is immutable; %s, or let a maintainer undo that", tag, path, what, wayOut).
		WithStatus(http.StatusConflict).WithDetail(map[string]string{"name": path, "tag": tag, "immutable": "true"})
}

// SetTagImmutable makes a tag immutable, which removes its date of expiration, or undoes that.
// Errors: NAME_UNKNOWN, MANIFEST_UNKNOWN.
func (c *Catalog) SetTagImmutable(ctx context.Context, path, tag string, on bool) error {
	return c.write(ctx, write{
		path: path, doing: fmt.Sprintf("changing whether tag %s of %s is immutable", tag, path),
		run: func(ctx context.Context, r repository) error {
			return c.txOrAnswer(ctx, func(tx pgx.Tx) error { return c.setImmutable(ctx, tx, r, path, tag, on) })
		},
	})
}

func (c *Catalog) setImmutable(ctx context.Context, tx pgx.Tx, r repository, path, tag string, on bool) error {
	var was bool
	b := new(batch)
	b.lockRepository(r, path)
	b.Row([]any{&was}, "SELECT immutable FROM tags WHERE top_level_namespace_id = $1 AND repository_id = $2 AND name = $3 FOR UPDATE",
		r.namespace, r.id, tag)
	err := b.Send(ctx, tx)
	switch {
	case isNoRows(err):
		return ManifestUnknown(path, tag)
	case err != nil:
		return err
	case was == on:
		return nil
	}
	_, err = tx.Exec(ctx, `
		WITH old AS (
			SELECT name, manifest_id, expires_at FROM tags
			WHERE top_level_namespace_id = @namespace AND repository_id = @repository AND name = @tag
		), changed AS (
			UPDATE tags SET immutable = @on, expires_at = CASE WHEN NOT @on THEN expires_at END
			WHERE top_level_namespace_id = @namespace AND repository_id = @repository AND name = @tag
			RETURNING name
		)
		INSERT INTO auditlog (kind, actor, address, user_agent, request_id, namespace, repository, repository_id, tag, digest, detail)
		SELECT 'change_tag_immutability', @actor, @address, @user_agent, @request_id, split_part(@path::text, '/', 1), @path, @repository,
			o.name, m.digest, jsonb_strip_nulls(jsonb_build_object('immutable', @on::boolean, 'old_expiration_date', o.expires_at))
		FROM changed JOIN old o USING (name) CROSS JOIN LATERAL (
			SELECT digest FROM manifests
			WHERE top_level_namespace_id = @namespace AND repository_id = @repository AND id = o.manifest_id OFFSET 0) m`,
		audit.Args(ctx, db.Args{"namespace": r.namespace, "repository": r.id, "path": path, "tag": tag, "on": on}))
	return err
}

// immutableTagOf returns the error for a client that tried to delete a manifest with an immutable
// tag; nil if it has none any more. OFFSET 0 in its SQL makes PostgreSQL look rows up by an index:
// see "Plans" in package db.
func (c *Catalog) immutableTagOf(ctx context.Context, r repository, path string, d oci.Digest) error {
	var tag string
	err := c.db.Pool.QueryRow(ctx, `
		SELECT t.name FROM (
			SELECT id FROM manifests WHERE top_level_namespace_id = $1 AND repository_id = $2 AND digest = $3 OFFSET 0) m
		CROSS JOIN LATERAL (
			SELECT name, immutable FROM tags
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND manifest_id = m.id OFFSET 0) t
		WHERE t.immutable ORDER BY t.name LIMIT 1`, r.namespace, r.id, d.Bytes()).Scan(&tag)
	switch {
	case isNoRows(err):
		return nil
	case err != nil:
		return fmt.Errorf("looking for the immutable tag: %w", err)
	}
	return immutableRefusal(path, tag, "deleted with its manifest", "delete the tag first, by the management API with override_protection")
}
