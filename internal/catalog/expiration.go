package catalog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/clock"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/protection"
)

// SetTagExpiration sets the date at which a tag is to be deleted; the zero time removes the
// date. A push of the tag removes it too, even a push of the same manifest, or sets another by a
// label (see labels.go). Errors:
// NAME_UNKNOWN, MANIFEST_UNKNOWN; DENIED with status 409 if a rule protects the tag or it is immutable, since a
// protected tag can't have a date.
//
// SetTagExpiration locks the tag's row before it changes the date, as puts and deletions of
// tags do.
func (c *Catalog) SetTagExpiration(ctx context.Context, path, tag string, at time.Time) error {
	return c.SetTagExpirationOf(ctx, path, tag, oci.Digest{}, at)
}

// SetTagExpirationOf is SetTagExpiration for a tag that points to a manifest. If it points to another
// one now, the error is DENIED with status 412.
func (c *Catalog) SetTagExpirationOf(ctx context.Context, path, tag string, d oci.Digest, at time.Time) error {
	return c.write(ctx, write{
		path: path, doing: fmt.Sprintf("setting the expiration of tag %s of %s", tag, path),
		run: func(ctx context.Context, r repository) error {
			rules := c.rules()
			var refusal error // by the rules that this process knows, if they are those in force
			if rule := rules.Of(r.namespace, r.id, tag); rule != nil && !at.IsZero() {
				refusal = rule.Refusal(path, tag, "given a date of expiration", "delete it by hand when it is time")
			}
			return c.txOrAnswer(ctx, func(tx pgx.Tx) error {
				return c.setExpiration(ctx, tx, r, path, tag, d, at, rules.Version, refusal)
			})
		},
	})
}

// setExpiration locks the repository against deletion and sets the tag's expiration date,
// unless the tag has this date already. If d isn't zero, the tag must point to it. `refusal` is what the
// rules of protection in their `version` say against it, nil if nothing. OFFSET 0 in its SQL makes
// PostgreSQL look rows up by an index: see "Plans" in package db.
func (c *Catalog) setExpiration(ctx context.Context, tx pgx.Tx, r repository, path, tag string, d oci.Digest, at time.Time, version string, refusal error) error {
	var old *time.Time
	var otherwise, immutable bool
	var now []byte
	b := new(batch)
	b.lockRepository(r, path)
	b.Row([]any{&old, &immutable, &otherwise, &now}, `
		SELECT expires_at, immutable, (SELECT value FROM settings WHERE name = 'tag_protection_version') IS DISTINCT FROM $4, (
			SELECT digest FROM manifests
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND id = t.manifest_id OFFSET 0)
		FROM (
			SELECT expires_at, immutable, manifest_id FROM tags
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND name = $3 FOR UPDATE) t`,
		r.namespace, r.id, tag, version)
	err := b.Send(ctx, tx)
	switch {
	case isNoRows(err):
		return ManifestUnknown(path, tag)
	case err != nil:
		return err
	case otherwise:
		return rulesChanged
	case refusal != nil:
		return refusal
	case d != oci.Digest{} && !bytes.Equal(now, d.Bytes()):
		return oci.Errorf(oci.Denied, "tag %s of %s points to another manifest now", tag, path).WithStatus(http.StatusPreconditionFailed)
	case immutable && !at.IsZero():
		return immutableRefusal(path, tag, "given a date of expiration", "let it be moved and deleted again first")
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
	Held    int  // tags that stay, with their dates, as long as a reporter holds them or their repository is in the trash
	More    bool // further tags are due
}

// ExpireTags deletes up to maxExpired tags whose expiration date has passed, those with the
// earliest dates first. If a protection rule was made after such a tag got its date, and now
// protects the tag, the tag stays and loses the date. Several processes may call ExpireTags at
// once: each skips tags that another transaction has locked, and a later call deletes those
// that are then still due.
//
// A held tag keeps its date, which acts when the hold has ended. So that held tags don't hide
// others, each call goes on after the tags that the call before has looked at. After the last
// due tag, the next call begins again; NextExpiration lets it wait for a minute if tags are held.
//
// ExpireTags deletes the tags of each repository in one transaction. The transaction locks the
// repository's row against deletion, and then the tags in the order of their names, the order
// in which a put locks them. It deletes those locked tags that are still due. So if a client
// pushes a tag before it is locked, the push removes the date, and the tag stays.
func (c *Catalog) ExpireTags(ctx context.Context) (done Expired, err error) {
	list, err := c.dueTags(ctx)
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
		if t.Path == inTrash { // the repository may come back, and its tags expire then
			done.Held += len(names[t])
			continue
		}
		if t.Path == "" { // the repository was deleted, and its rows are being removed
			_, err := c.db.Pool.Exec(ctx, `
				UPDATE tags SET expires_at = NULL WHERE top_level_namespace_id = $1 AND repository_id = $2 AND name = ANY ($3::text[])`,
				t.NamespaceID, t.ID, names[t])
			if err != nil {
				return done, fmt.Errorf("skipping tags of a deleted repository: %w", err)
			}
			continue
		}
		in, err := c.expireIn(ctx, t, names[t])
		if err != nil && !errors.Is(err, repositoryGone) {
			return done, err
		}
		done.Deleted, done.Kept, done.Held = done.Deleted+in.Deleted, done.Kept+in.Kept, done.Held+in.Held
	}
	full := len(list) == maxExpired
	c.expiry.looked(list, done.Held > 0, full)
	done.More = full && done.Deleted+done.Kept+done.Held > 0
	return done, nil
}

// expiry is how far ExpireTags has looked at due tags.
type expiry struct {
	mu   sync.Mutex
	at   time.Time // of the last tag that was looked at; zero: begin with the first
	id   int64
	held time.Time // the last date of a page of this pass with held tags
	rest time.Time // the same of the last whole pass: up to there, only held tags are left
}

func (e *expiry) after() (at time.Time, id int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.at, e.id
}

// looked notes that the tags in `list` were looked at, and whether some of them are held. If
// `more` is false, this was the end of the pass.
func (e *expiry) looked(list []dueTag, held, more bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if held {
		e.held = list[len(list)-1].at
	}
	if !more {
		e.at, e.id, e.rest, e.held = time.Time{}, 0, e.held, time.Time{}
		return
	}
	if !e.held.IsZero() { // without held tags, those that were looked at are gone, or were locked and are looked at again
		last := list[len(list)-1]
		e.at, e.id = last.at, last.id
	}
}

// passed returns the date up to which no tag needs to be looked at: zero, or if tags of the last
// whole pass are held, the last of their dates.
func (e *expiry) passed() time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.rest
}

// dueTag is a tag whose date has passed.
type dueTag struct {
	Repository
	name string
	at   time.Time
	id   int64
}

// inTrash stands for the path of a repository in the trash. No repository has this path.
const inTrash = "#"

// dueTags returns the next tags whose date has passed. The path of a tag's repository is inTrash
// if it is in the trash, and empty if it was deleted.
func (c *Catalog) dueTags(ctx context.Context) ([]dueTag, error) {
	at, id := c.expiry.after()
	rows, err := c.db.Pool.Query(ctx, `
		SELECT t.top_level_namespace_id, t.repository_id,
			CASE WHEN n.id IS NULL THEN '' WHEN n.deleted_at IS NULL AND r.deleted_at IS NULL THEN r.path ELSE $4 END,
			t.name, t.expires_at, t.id FROM (
			SELECT top_level_namespace_id, repository_id, name, expires_at, id FROM tags
			WHERE expires_at <= now() AND expires_at >= $2 AND (expires_at, id) > ($2, $3) ORDER BY expires_at, id LIMIT $1) t
		LEFT JOIN repositories r ON r.id = t.repository_id
		LEFT JOIN top_level_namespaces n ON n.id = r.top_level_namespace_id
		ORDER BY t.expires_at, t.id`, maxExpired, at, id, inTrash)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (d dueTag, err error) {
		err = row.Scan(&d.NamespaceID, &d.ID, &d.Path, &d.name, &d.at, &d.id)
		return d, err
	})
}

// expireIn locks and deletes those of the named tags of one repository whose expiration date
// has passed; it skips tags that another transaction has locked.
func (c *Catalog) expireIn(ctx context.Context, t Repository, names []string) (done Expired, err error) {
	err = c.write(ctx, write{
		path: t.Path, in: repository{t.NamespaceID, t.ID}, doing: "deleting expired tags of " + t.Path, drop: c.cache.dropTags,
		run: func(ctx context.Context, r repository) error {
			return c.txOrAnswer(ctx, func(tx pgx.Tx) error {
				if done, err = c.expire(ctx, tx, r, t.Path, names, c.rules()); err != nil {
					return err
				}
				return clock.CheckTx(ctx, tx, c.opt.CheckTime)
			})
		},
	})
	return done, err
}

// expire locks the tags, looks for those that are held, and deletes the others.
func (c *Catalog) expire(ctx context.Context, tx pgx.Tx, r repository, path string, names []string, rules *protection.Rules) (done Expired, err error) {
	var locked, held []string
	var otherwise bool
	b := new(batch)
	b.lockRepository(r, path)
	b.lockHolds()
	b.Row([]any{&locked, &otherwise}, `
		SELECT COALESCE(array_agg(name), '{}'), (SELECT value FROM settings WHERE name = 'tag_protection_version') IS DISTINCT FROM $4 FROM (
			SELECT name FROM tags
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND name = ANY ($3::text[]) AND expires_at <= now()
			ORDER BY name FOR UPDATE SKIP LOCKED) t`, r.namespace, r.id, names, rules.Version)
	b.Row([]any{&held}, `
		WITH named AS MATERIALIZED (
			SELECT name, manifest_id FROM tags
			WHERE top_level_namespace_id = $1 AND repository_id = $2 AND name = ANY ($3::text[]) AND purser_any_holds($1)
		), held AS MATERIALIZED (
			SELECT manifest_id FROM purser_held($1, $2, ARRAY(SELECT manifest_id FROM named))
		)
		SELECT COALESCE(array_agg(name), '{}') FROM named
		WHERE manifest_id IN (SELECT manifest_id FROM held)
			OR name IN (SELECT name FROM purser_held_names($1, $2, ARRAY(SELECT name FROM named)))`, r.namespace, r.id, names)
	if err := b.Send(ctx, tx); err != nil {
		return done, err
	}
	if otherwise {
		return done, rulesChanged
	}
	due := slices.DeleteFunc(slices.Clone(locked), func(name string) bool { return slices.Contains(held, name) })
	done.Held = len(locked) - len(due)
	if locked = due; len(locked) == 0 {
		return done, nil
	}
	protected := rules.Protected(r.namespace, r.id, locked)
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
	})).Scan(&done.Deleted, &done.Kept)
	return done, err
}

// NextExpiration returns how long it is, by the database's clock, until the earliest
// expiration date of any tag; the duration is negative if the date has passed. It leaves out
// dates of held tags that ExpireTags has just looked at. The bool is false if no tag has a date.
func (c *Catalog) NextExpiration(ctx context.Context) (time.Duration, bool, error) {
	var seconds *float64
	err := c.db.Pool.QueryRow(ctx, `
		SELECT extract(epoch FROM (SELECT expires_at FROM tags WHERE expires_at > $1 ORDER BY expires_at LIMIT 1) - now())`, c.expiry.passed()).Scan(&seconds)
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
