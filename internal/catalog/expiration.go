package catalog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// SetTagExpiration sets the date at which a tag is to be deleted; the zero time removes the
// date. A push of the tag removes it too, even a push of the same manifest. Errors:
// NAME_UNKNOWN, MANIFEST_UNKNOWN; DENIED with status 409 if a rule protects the tag, since a
// protected tag can't have a date.
//
// SetTagExpiration locks the tag's row before it changes the date, as puts and deletions of
// tags do.
func (c *Catalog) SetTagExpiration(ctx context.Context, path, tag string, at time.Time) error {
	return c.write(ctx, write{
		path: path, doing: fmt.Sprintf("setting the expiration of tag %s of %s", tag, path),
		run: func(ctx context.Context, r repository) error {
			rules := c.rules()
			if rule := rules.of(r, tag); rule != nil && !at.IsZero() {
				return rule.refusal(path, tag, "given a date of expiration", "delete it by hand when it is time")
			}
			return c.txOrAnswer(ctx, func(tx pgx.Tx) error {
				return c.setExpiration(ctx, tx, r, path, tag, at, rules.version)
			})
		},
	})
}

// setExpiration locks the repository against deletion and sets the tag's expiration date,
// unless the tag has this date already. OFFSET 0 in its SQL makes PostgreSQL look rows up by
// an index: see "Plans" in package db.
func (c *Catalog) setExpiration(ctx context.Context, tx pgx.Tx, r repository, path, tag string, at time.Time, version string) error {
	var old *time.Time
	var otherwise bool
	b := new(batch)
	b.lockRepository(r, path)
	b.row([]any{&old, &otherwise}, `
		SELECT expires_at, (SELECT value FROM settings WHERE name = 'tag_protection_version') IS DISTINCT FROM $4 FROM (
			SELECT expires_at FROM tags
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND name = $3 FOR UPDATE) t`,
		r.namespace, r.id, tag, version)
	err := b.send(ctx, tx)
	switch {
	case isNoRows(err):
		return manifestUnknown(path, tag)
	case err != nil:
		return err
	case otherwise:
		return rulesChanged
	case old == nil && at.IsZero(), old != nil && old.Equal(at):
		return nil
	}
	_, err = tx.Exec(ctx, `
		WITH changed AS (
			UPDATE tags SET expires_at = @at
			WHERE top_level_namespace_id = @namespace AND repository_id = @repository AND name = @tag
			RETURNING name, manifest_id
		), logged AS (
			INSERT INTO auditlog (kind, actor, address, user_agent, request_id, namespace, repository, repository_id, tag, digest, detail)
			SELECT 'change_tag_expiration', @actor, @address, @user_agent, @request_id, split_part(@path::text, '/', 1), @path, @repository,
				t.name, m.digest, jsonb_build_object('expiration_date', @at::timestamptz, 'old_expiration_date', @old::timestamptz)
			FROM changed t CROSS JOIN LATERAL (
				SELECT digest FROM manifests
				WHERE top_level_namespace_id = @namespace AND repository_id = @repository AND id = t.manifest_id OFFSET 0) m
		)
		SELECT FROM changed`, audit.Args(ctx, db.Args{
		"namespace": r.namespace, "repository": r.id, "path": path, "tag": tag, "at": orNull(at), "old": old}))
	return err
}

// orNull returns nil (NULL) for the zero time.
func orNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// maxExpired bounds the tags that one call of ExpireTags looks at.
const maxExpired = 200

// Expired says what ExpireTags did.
type Expired struct {
	Deleted int  // tags
	Kept    int  // protected tags, whose date was removed
	More    bool // further tags are due
}

// ExpireTags deletes up to maxExpired tags whose expiration date has passed, those with the
// earliest dates first. If a protection rule was made after such a tag got its date, and now
// protects the tag, the tag stays and loses the date. Several processes may call ExpireTags at
// once: each skips tags that another transaction has locked, and a later call deletes those
// that are then still due.
//
// ExpireTags deletes the tags of each repository in one transaction. The transaction locks the
// repository's row against deletion, and then the tags in the order of their names, the order
// in which a put locks them. It deletes those locked tags that are still due. So if a client
// pushes a tag before it is locked, the push removes the date, and the tag stays.
func (c *Catalog) ExpireTags(ctx context.Context) (done Expired, err error) {
	type due struct {
		Repository
		name string
	}
	rows, err := c.db.Pool.Query(ctx, `
		SELECT t.top_level_namespace_id, t.repository_id, COALESCE(r.path, ''), t.name FROM (
			SELECT top_level_namespace_id, repository_id, name, expires_at FROM tags
			WHERE expires_at <= now() ORDER BY expires_at LIMIT $1) t
		LEFT JOIN live_repositories r ON r.id = t.repository_id AND r.top_level_namespace_id = t.top_level_namespace_id
		ORDER BY t.expires_at`, maxExpired)
	if err != nil {
		return done, fmt.Errorf("looking for expired tags: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (d due, err error) {
		err = row.Scan(&d.NamespaceID, &d.ID, &d.Path, &d.name)
		return d, err
	})
	if err != nil {
		return done, fmt.Errorf("looking for expired tags: %w", err)
	}
	var order []Repository
	names := make(map[Repository][]string)
	for _, d := range list {
		if names[d.Repository] == nil {
			order = append(order, d.Repository)
		}
		names[d.Repository] = append(names[d.Repository], d.name)
	}
	for _, t := range order {
		if t.Path == "" { // the repository was deleted, and its rows are being removed
			_, err := c.db.Pool.Exec(ctx, `
				UPDATE tags SET expires_at = NULL WHERE top_level_namespace_id = $1 AND repository_id = $2 AND name = ANY ($3::text[])`,
				t.NamespaceID, t.ID, names[t])
			if err != nil {
				return done, fmt.Errorf("skipping tags of a deleted repository: %w", err)
			}
			continue
		}
		deleted, kept, err := c.expireIn(ctx, t, names[t])
		if err != nil && !errors.Is(err, repositoryGone) {
			return done, err
		}
		done.Deleted, done.Kept = done.Deleted+deleted, done.Kept+kept
	}
	done.More = len(list) == maxExpired && done.Deleted+done.Kept > 0
	return done, nil
}

// expireIn locks and deletes those of the named tags of one repository whose expiration date
// has passed; it skips tags that another transaction has locked. It returns how many tags it
// deleted, and how many it kept because a rule protects them.
func (c *Catalog) expireIn(ctx context.Context, t Repository, names []string) (deleted, kept int, err error) {
	err = c.write(ctx, write{
		path: t.Path, in: repository{t.NamespaceID, t.ID}, doing: "deleting expired tags of " + t.Path, drop: c.cache.dropTags,
		run: func(ctx context.Context, r repository) error {
			return c.txOrAnswer(ctx, func(tx pgx.Tx) error {
				deleted, kept, err = c.expire(ctx, tx, r, t.Path, names, c.rules())
				return err
			})
		},
	})
	return deleted, kept, err
}

func (c *Catalog) expire(ctx context.Context, tx pgx.Tx, r repository, path string, names []string, rules *protection) (deleted, kept int, err error) {
	var locked []string
	var otherwise bool
	b := new(batch)
	b.lockRepository(r, path)
	b.row([]any{&locked, &otherwise}, `
		SELECT COALESCE(array_agg(name), '{}'), (SELECT value FROM settings WHERE name = 'tag_protection_version') IS DISTINCT FROM $4 FROM (
			SELECT name FROM tags
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND name = ANY ($3::text[]) AND expires_at <= now()
			ORDER BY name FOR UPDATE SKIP LOCKED) t`, r.namespace, r.id, names, rules.version)
	if err := b.send(ctx, tx); err != nil {
		return 0, 0, err
	}
	if otherwise {
		return 0, 0, rulesChanged
	}
	if len(locked) == 0 {
		return 0, 0, nil
	}
	protected := rules.protected(r, locked)
	err = tx.QueryRow(ctx, `
		WITH old AS (
			SELECT name, manifest_id, expires_at, name = ANY (@protected::text[]) AS protected FROM tags
			WHERE top_level_namespace_id = @namespace AND repository_id = @repository AND name = ANY (@locked::text[])
		), gone AS (
			DELETE FROM tags WHERE top_level_namespace_id = @namespace AND repository_id = @repository
				AND name = ANY (@locked::text[]) AND name <> ALL (@protected::text[])
			RETURNING name
		), kept AS (
			UPDATE tags SET expires_at = NULL
			WHERE top_level_namespace_id = @namespace AND repository_id = @repository AND name = ANY (@protected::text[])
			RETURNING name
		), logged AS (
			INSERT INTO auditlog (kind, actor, address, user_agent, request_id, namespace, repository, repository_id, tag, digest, detail)
			SELECT CASE WHEN o.protected THEN 'change_tag_expiration' ELSE 'delete_tag' END, @actor, @address, @user_agent, @request_id,
				split_part(@path::text, '/', 1), @path, @repository, o.name, m.digest,
				CASE WHEN o.protected
					THEN jsonb_build_object('expiration_date', NULL, 'old_expiration_date', o.expires_at, 'reason', 'protected')
					ELSE jsonb_build_object('expiration_date', o.expires_at, 'reason', 'expired') END
			FROM old o CROSS JOIN LATERAL (
				SELECT digest FROM manifests
				WHERE top_level_namespace_id = @namespace AND repository_id = @repository AND id = o.manifest_id OFFSET 0) m
		)
		SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM kept)`, audit.Args(ctx, db.Args{
		"namespace": r.namespace, "repository": r.id, "path": path, "locked": locked, "protected": protected,
	})).Scan(&deleted, &kept)
	return deleted, kept, err
}

// NextExpiration returns how long it is, by the database's clock, until the earliest
// expiration date of any tag; the duration is negative if the date has passed. The bool is
// false if no tag has a date.
func (c *Catalog) NextExpiration(ctx context.Context) (time.Duration, bool, error) {
	var seconds *float64
	err := c.db.Pool.QueryRow(ctx, `
		SELECT extract(epoch FROM (SELECT expires_at FROM tags WHERE expires_at IS NOT NULL ORDER BY expires_at LIMIT 1) - now())`).Scan(&seconds)
	if err != nil || seconds == nil {
		return 0, false, err
	}
	// Beyond 1e9 seconds a Duration would overflow.
	return time.Duration(min(*seconds, 1e9) * float64(time.Second)), true, nil
}

// expirationInvalid returns the error for a date that a tag can't have.
func expirationInvalid(format string, args ...any) error {
	return oci.Errorf(oci.Unsupported, "expiration: "+format, args...).WithStatus(400).WithDetail(map[string]string{"field": "expiration"})
}

// MaxExpiration is the last date that a tag can have.
var MaxExpiration = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)

// CheckExpiration returns a client's error if the date has passed, by this process's clock, or
// is after MaxExpiration.
func CheckExpiration(at time.Time) error {
	switch {
	case !at.After(time.Now()):
		return expirationInvalid("%s has passed already; null takes the date away", at.UTC().Format(time.RFC3339))
	case at.After(MaxExpiration):
		return expirationInvalid("it is after the year %d", MaxExpiration.Year())
	}
	return nil
}
