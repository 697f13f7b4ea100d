package hold

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// Of returns who holds those of the given manifests (ids in one repository) that are held. Its
// statement sees what q sees: a caller that is about to delete must have called purser_holds_lock
// in an earlier statement of the transaction q.
func Of(ctx context.Context, q db.Querier, namespace, repository int64, manifests []int64) (map[int64][]Holder, error) {
	if len(manifests) == 0 {
		return nil, nil
	}
	return holders[int64](ctx, q, repository, `
		SELECT manifest_id, reporter, used_by, digest, expires_at FROM purser_held($1, $2, $3::bigint[])`, namespace, repository, manifests)
}

// OfNames returns, by name, who holds the images that names of tags refer to, as in
// sha256-….sig: see purser_held_names.
func OfNames(ctx context.Context, q db.Querier, namespace, repository int64, names []string) (map[string][]Holder, error) {
	return holders[string](ctx, q, repository, `
		SELECT name, reporter, used_by, digest, expires_at FROM purser_held_names($1, $2, $3::text[])`, namespace, repository, names)
}

// holders returns the holders that a statement finds in a repository, by the statement's first
// column.
func holders[Key comparable](ctx context.Context, q db.Querier, repository int64, sql string, args ...any) (map[Key][]Holder, error) {
	found := make(map[Key][]Holder)
	var key Key
	var r row
	rows, err := q.Query(ctx, sql, args...)
	if err == nil {
		_, err = pgx.ForEachRow(rows, append([]any{&key}, r.fields()...), func() error {
			o, err := r.holder()
			found[key] = append(found[key], o)
			return err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("looking for holds in repository %d: %w", repository, err)
	}
	return found, nil
}

// row is a holder as statements return it.
type row struct {
	reporter, usedBy string
	digest           []byte
	expires          time.Time
}

func (r *row) fields() []any { return []any{&r.reporter, &r.usedBy, &r.digest, &r.expires} }

func (r *row) holder() (Holder, error) {
	d, err := oci.DigestFromBytes(r.digest)
	return Holder{Reporter: r.reporter, UsedBy: r.usedBy, Digest: d, Expires: r.expires.UTC()}, err
}

// maxListed is how many held manifests of a repository or a namespace are listed.
const maxListed = 10

// InRepository returns holds of manifests in a repository, at most ten.
func InRepository(ctx context.Context, q db.Querier, namespace, repository int64) ([]Holder, error) {
	rows, err := q.Query(ctx, `
		SELECT h.reporter, h.used_by, h.digest, h.expires_at FROM (
			SELECT digest FROM manifests
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND purser_any_holds($1) OFFSET 0) m
		CROSS JOIN LATERAL (
			SELECT r.name AS reporter, o.used_by, o.digest, LEAST(r.expires_at, o.ends_at + r.postponed) AS expires_at
			FROM (SELECT reporter_id, digest, used_by, ends_at FROM holds WHERE digest = m.digest OFFSET 0) o
			CROSS JOIN LATERAL (
				SELECT name, expires_at, postponed FROM holdreporters
				WHERE id = o.reporter_id AND expires_at > now() AND (namespace_id IS NULL OR namespace_id = $1)
					AND (o.ends_at IS NULL OR o.ends_at + postponed > now()) OFFSET 0) r
			OFFSET 0) h
		LIMIT $3`, namespace, repository, maxListed)
	return collect(rows, err, fmt.Sprintf("repository %d", repository))
}

// InNamespace is like InRepository, for all repositories of a namespace.
func InNamespace(ctx context.Context, q db.Querier, namespace int64) ([]Holder, error) {
	rows, err := q.Query(ctx, `
		SELECT h.reporter, h.used_by, h.digest, h.expires_at FROM (
			SELECT m.digest FROM (
				SELECT id FROM repositories WHERE top_level_namespace_id = $1 AND deleted_at IS NULL AND purser_any_holds($1) OFFSET 0) r
			CROSS JOIN LATERAL (
				SELECT digest FROM manifests WHERE top_level_namespace_id = $1 AND repository_id = r.id OFFSET 0) m
			OFFSET 0) m
		CROSS JOIN LATERAL (
			SELECT r.name AS reporter, o.used_by, o.digest, LEAST(r.expires_at, o.ends_at + r.postponed) AS expires_at
			FROM (SELECT reporter_id, digest, used_by, ends_at FROM holds WHERE digest = m.digest OFFSET 0) o
			CROSS JOIN LATERAL (
				SELECT name, expires_at, postponed FROM holdreporters
				WHERE id = o.reporter_id AND expires_at > now() AND (namespace_id IS NULL OR namespace_id = $1)
					AND (o.ends_at IS NULL OR o.ends_at + postponed > now()) OFFSET 0) r
			OFFSET 0) h
		LIMIT $2`, namespace, maxListed)
	return collect(rows, err, fmt.Sprintf("namespace %d", namespace))
}

func scanHolder(c pgx.CollectableRow) (Holder, error) {
	var r row
	if err := c.Scan(r.fields()...); err != nil {
		return Holder{}, err
	}
	return r.holder()
}

func collect(rows pgx.Rows, err error, of string) (list []Holder, _ error) {
	if err == nil {
		list, err = pgx.CollectRows(rows, scanHolder)
	}
	if err != nil {
		return nil, fmt.Errorf("looking for holds in %s: %w", of, err)
	}
	return list, nil
}
