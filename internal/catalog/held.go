package catalog

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/hold"
	"github.com/purser-registry/purser/internal/oci"
)

// heldDetail is the detail of the error for something that is held.
type heldDetail struct {
	Name   string        `json:"name"`
	Tag    string        `json:"tag,omitempty"`
	Digest string        `json:"digest,omitempty"`
	HeldBy []hold.Holder `json:"held_by"`
}

// held returns the client's error for something that isn't deleted because it is held. `what`
// describes it.
func held(what string, d heldDetail) error {
	var by []string
	for _, h := range d.HeldBy {
		by = append(by, h.String())
	}
	return oci.Errorf(oci.Denied, "%s is deployed: it is held by %s; override_holds deletes it all the same", what, strings.Join(by, "; ")).
		WithStatus(http.StatusConflict).WithDetail(d)
}

// tagHeld returns the client's error for a tag that isn't deleted because its manifest is held,
// or nil if that isn't so any more.
func (c *Catalog) tagHeld(ctx context.Context, r repository, path, tag string) error {
	var id int64
	var digest []byte
	err := c.db.Pool.QueryRow(ctx, `
		SELECT m.id, m.digest FROM (
			SELECT manifest_id FROM tags
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND name = $3 OFFSET 0) t
		CROSS JOIN LATERAL (
			SELECT id, digest FROM manifests
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND id = t.manifest_id OFFSET 0) m`, r.namespace, r.id, tag).Scan(&id, &digest)
	if isNoRows(err) {
		return manifestUnknown(path, tag)
	}
	if err != nil {
		return err
	}
	return c.heldBy(ctx, r, path, id, digest, tag)
}

// manifestHeld is like tagHeld, for a manifest.
func (c *Catalog) manifestHeld(ctx context.Context, r repository, path string, d oci.Digest) error {
	var id int64
	var tags []string
	err := c.db.Pool.QueryRow(ctx, `
		SELECT m.id, ARRAY(
			SELECT name FROM tags WHERE top_level_namespace_id = $1 AND repository_id = $2 AND manifest_id = m.id ORDER BY name LIMIT 100)
		FROM manifests m WHERE m.top_level_namespace_id = $1 AND m.repository_id = $2 AND m.digest = $3`, r.namespace, r.id, d.Bytes()).Scan(&id, &tags)
	if isNoRows(err) {
		return manifestUnknown(path, d.String())
	}
	if err != nil {
		return err
	}
	return c.heldBy(ctx, r, path, id, d.Bytes(), tags...)
}

// heldBy returns the client's error for a manifest with tags that is held, or nil if it isn't.
func (c *Catalog) heldBy(ctx context.Context, r repository, path string, id int64, digest []byte, tags ...string) error {
	d, err := oci.DigestFromBytes(digest)
	if err != nil {
		return err
	}
	detail := heldDetail{Name: path, Digest: d.String()}
	what := fmt.Sprintf("manifest %s of %s", d, path)
	if len(tags) == 1 {
		detail.Tag, what = tags[0], fmt.Sprintf("tag %s of %s", tags[0], path)
	}
	of, err := hold.Of(ctx, c.db.Pool, r.namespace, r.id, []int64{id})
	if err != nil {
		return err
	}
	detail.HeldBy = of[id]
	named, err := hold.OfNames(ctx, c.db.Pool, r.namespace, r.id, tags)
	if err != nil {
		return err
	}
	for _, tag := range tags {
		detail.HeldBy = append(detail.HeldBy, named[tag]...)
	}
	if len(detail.HeldBy) == 0 {
		return nil
	}
	return held(what, detail)
}

// lookTime limits how long the deletion of a repository or a namespace looks for holds.
const lookTime = "5s"

// refuseHeld returns the client's error if `look` finds holds, or if it takes too long, unless
// overridden. It returns the reporters' names for the audit log: nil if nobody holds anything,
// empty if the look took too long and is overridden.
func refuseHeld(ctx context.Context, tx pgx.Tx, what, name string, overridden bool, look func(ctx context.Context, q db.Querier) ([]hold.Holder, error)) (by []string, err error) {
	var holders []hold.Holder
	err = pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { // a savepoint, since a statement that is ended aborts the transaction
		var before string // DEFAULT would be what the role or the database imposes
		if err := tx.QueryRow(ctx, `
			WITH before AS MATERIALIZED (SELECT current_setting('statement_timeout') AS value)
			SELECT value, set_config('statement_timeout', $1, true) FROM before`, lookTime).Scan(&before, nil); err != nil {
			return err
		}
		if holders, err = look(ctx, tx); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "SELECT set_config('statement_timeout', $1, true)", before)
		return err
	})
	switch {
	case db.Code(err) == db.CodeQueryCanceled && overridden:
		return []string{}, nil
	case db.Code(err) == db.CodeQueryCanceled:
		return nil, oci.Errorf(oci.Denied, "%s is so large that it could not be told in %s whether something in it is deployed; override_holds deletes it all the same", what, lookTime).
			WithStatus(http.StatusConflict).WithDetail(map[string]string{"name": name})
	case err != nil:
		return nil, err
	case len(holders) > 0 && !overridden:
		return nil, held(what, heldDetail{Name: name, HeldBy: holders})
	}
	for _, h := range holders {
		by = append(by, h.Reporter)
	}
	return by, nil
}
