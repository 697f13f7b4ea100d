// Package quota limits the bytes, repositories and tags of namespaces. Triggers count what a
// namespace uses and refuse what exceeds a hard limit: the argument why their numbers are exact is in
// db/routines/quotas.sql. This package makes and changes quotas, looks before a client sends bytes
// whether they would be refused (AdmitBlob), counts the content that was there before the quota
// (Count), and tells when a limit is reached (Tell). Package catalog, which is above this one, calls
// it for every push, and reserves room for uploads that aren't finished.
//
// # Decisions
//
// A quota is counted under locks of its own, and not under those of the review queue, which every
// link of an existing blob takes too. So the argument in db/routines/quotas.sql needs nothing from
// the code that changes links. A quota in one row would make the pushes of a namespace wait for one
// another: over 16 connections they took 42% longer. Slots with room of their own let them commit
// together, and no limit is exceeded.
//
// Looks before a push take no lock, and remember for a moment what they have read. They save clients
// from sending bytes in vain, and PostgreSQL's log from an error for each refusal. Only the triggers
// decide, so a look may be out of date.
package quota

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// Options configure a Keeper.
type Options struct {
	DB *db.DB // required
	// TrashKeep is how long what is deleted stays in the trash and counts, for the text of refusals.
	// 0: there is no trash.
	TrashKeep time.Duration
	Log       *slog.Logger // default slog.Default()
}

// Keeper keeps the quotas of namespaces. Its methods may be called concurrently, by any number of
// processes on one database. It remembers what it has read, so a process needs only one, which is
// also that of its catalog.
type Keeper struct {
	db    *db.DB
	opt   Options
	log   *slog.Logger
	cache cache
}

// New makes a keeper.
func New(o Options) *Keeper {
	o.Log = cmp.Or(o.Log, slog.Default())
	return &Keeper{db: o.DB, opt: o, log: o.Log}
}

// Usage is an amount of each of the three things that a quota limits. In a Usage of limits, 0 is
// no limit.
type Usage struct {
	Bytes        int64 // of the blobs of a namespace, each counted once
	Repositories int64
	Tags         int64
}

// of returns the amount of one thing: "bytes", "repositories" or "tags".
func (u Usage) of(what string) int64 {
	switch what {
	case "bytes":
		return u.Bytes
	case "repositories":
		return u.Repositories
	default:
		return u.Tags
	}
}

// things are the things that a quota limits.
var things = []string{"bytes", "repositories", "tags"}

// Quota is the quota of a namespace.
type Quota struct {
	ID        int64 // differs from the id of every earlier quota of the namespace
	Namespace string
	Limits    Usage
	Used      Usage
	// Counted is false until the content that the namespace had before the quota is counted.
	// Until then, Used has only the changes since, and nothing is refused.
	Counted   bool
	Steps     []Step // in the order of their percents
	CreatedAt time.Time

	namespaceID int64
}

// Step says what happens when a namespace uses a part of its limits.
type Step struct {
	ID      int64
	Kind    Kind
	Percent int // of each limit, 1 to 100
}

// Kind is what happens at a Step. The values are Quay's.
type Kind string

const (
	Warning Kind = "Warning" // a notice is sent
	Reject  Kind = "Reject"  // what would exceed the part is refused
)

// MaxSteps limits the steps of a quota.
const MaxSteps = 20

// Values has the members of a quota that Create and Change set. With Change, a
// member that is nil stays as it is. A limit of 0 is no limit.
type Values struct {
	Bytes, Repositories, Tags *int64
	Steps                     []Step // their ids are ignored
}

// scan reads a row of the view shown_quotas.
func scan(row pgx.CollectableRow) (q Quota, err error) {
	var ids []int64
	var kinds []Kind
	var percents []int
	err = row.Scan(&q.ID, &q.Namespace, &q.namespaceID, &q.Limits.Bytes, &q.Limits.Repositories, &q.Limits.Tags,
		&q.Used.Bytes, &q.Used.Repositories, &q.Used.Tags, &q.Counted, &q.CreatedAt, &ids, &kinds, &percents)
	for i := range ids {
		q.Steps = append(q.Steps, Step{ids[i], kinds[i], percents[i]})
	}
	return q, err
}

// List lists up to n quotas of namespaces whose names come after `after`, in byte order.
// `next` is the value of `after` for the next page, "" if there is none.
func (k *Keeper) List(ctx context.Context, after string, n int) (list []Quota, next string, err error) {
	rows, err := k.db.Pool.Query(ctx, "SELECT * FROM shown_quotas WHERE name > $1 ORDER BY name LIMIT $2", after, n+1)
	if err == nil {
		list, err = pgx.CollectRows(rows, scan)
	}
	if err != nil {
		return nil, "", fmt.Errorf("listing quotas: %w", err)
	}
	if len(list) > n {
		list = list[:n]
		next = list[n-1].Namespace
	}
	return list, next, nil
}

// Of returns the quota of a namespace; `some` is false if the namespace has none. Error:
// NAME_UNKNOWN if there is no such namespace.
func (k *Keeper) Of(ctx context.Context, namespace string) (q Quota, some bool, err error) {
	var exists bool
	b := new(db.Batch)
	b.Row([]any{&exists}, "SELECT EXISTS (SELECT FROM live_namespaces WHERE name = $1)", namespace)
	b.Queue("SELECT * FROM shown_quotas WHERE name = $1", namespace).Query(func(rows pgx.Rows) error {
		list, err := pgx.CollectRows(rows, scan)
		if len(list) > 0 {
			q, some = list[0], true
		}
		return err
	})
	if err := b.Send(ctx, k.db.Pool); err != nil {
		return q, false, fmt.Errorf("reading the quota of %s: %w", namespace, err)
	}
	if !exists {
		return q, false, namespaceUnknown(namespace)
	}
	return q, some, nil
}

// namespaceUnknown returns the client's error for a namespace that doesn't exist.
func namespaceUnknown(name string) error {
	return oci.Errorf(oci.NameUnknown, "namespace %s is not known to this registry", name).
		WithDetail(map[string]string{"name": name})
}

// unknown returns the client's error for a quota that doesn't exist.
func unknown(namespace string) error {
	return oci.Errorf(oci.NameUnknown, "namespace %s has no such quota", namespace).WithDetail(map[string]string{"name": namespace})
}

// Create gives a namespace a quota. The content that the namespace has is counted by
// Count; until then nothing is refused. Errors: NAME_UNKNOWN; UNSUPPORTED with status 400 if
// the namespace has a quota, or if a member of `o` is invalid.
func (k *Keeper) Create(ctx context.Context, namespace string, o Values) error {
	if err := o.check(); err != nil {
		return err
	}
	return k.changeLocked(ctx, namespace, 0, audit.CreateQuota, func(tx pgx.Tx, namespaceID int64) error {
		done, err := tx.Exec(ctx, `
			INSERT INTO namespacequotas (namespace_id, bytes_limit, repositories_limit, tags_limit)
			VALUES ($1, NULLIF($2::bigint, 0), NULLIF($3::bigint, 0), NULLIF($4::bigint, 0)) ON CONFLICT DO NOTHING`,
			namespaceID, value(o.Bytes), value(o.Repositories), value(o.Tags))
		if err == nil && done.RowsAffected() == 0 {
			return oci.Errorf(oci.Unsupported, "the quota of namespace %s exists already", namespace).
				WithStatus(http.StatusBadRequest).WithDetail(map[string]string{"name": namespace})
		}
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `
			INSERT INTO namespacequotaslots (namespace_id, slot) SELECT $1, s FROM generate_series(0, 7) AS s`, namespaceID); err != nil {
			return err
		}
		return replaceSteps(ctx, tx, namespaceID, o.Steps)
	})
}

// Change changes the limits of a quota. Steps that stay the same keep their ids. Content
// above a lower limit stays; the namespace then can't grow. Errors as Create's.
func (k *Keeper) Change(ctx context.Context, namespace string, id int64, o Values) error {
	if err := o.check(); err != nil {
		return err
	}
	return k.changeLocked(ctx, namespace, id, audit.ChangeQuota, func(tx pgx.Tx, namespaceID int64) error {
		_, err := tx.Exec(ctx, `
			UPDATE namespacequotas SET
				bytes_limit = NULLIF(COALESCE($2::bigint, bytes_limit), 0),
				repositories_limit = NULLIF(COALESCE($3::bigint, repositories_limit), 0),
				tags_limit = NULLIF(COALESCE($4::bigint, tags_limit), 0)
			WHERE namespace_id = $1`, namespaceID, o.Bytes, o.Repositories, o.Tags)
		if err != nil || o.Steps == nil {
			return err
		}
		return replaceSteps(ctx, tx, namespaceID, o.Steps)
	})
}

// Delete takes a namespace's quota away. Error: NAME_UNKNOWN.
func (k *Keeper) Delete(ctx context.Context, namespace string, id int64) error {
	return k.changeLocked(ctx, namespace, id, audit.DeleteQuota, func(tx pgx.Tx, namespaceID int64) error {
		_, err := tx.Exec(ctx, "DELETE FROM namespacequotas WHERE namespace_id = $1", namespaceID)
		return err
	})
}

// Recount asks for the content of a namespace to be counted again, which Count does.
// Meanwhile the old numbers hold. Error: NAME_UNKNOWN.
func (k *Keeper) Recount(ctx context.Context, namespace string, id int64) error {
	return k.changeLocked(ctx, namespace, id, audit.RecountQuota, func(tx pgx.Tx, namespaceID int64) error {
		_, err := tx.Exec(ctx, "UPDATE namespacequotas SET recount = true WHERE namespace_id = $1", namespaceID)
		return err
	})
}

// AddStep adds a step to a quota. Errors: NAME_UNKNOWN; UNSUPPORTED with status 400 if the
// quota has the same step, or MaxSteps.
func (k *Keeper) AddStep(ctx context.Context, namespace string, id int64, s Step) error {
	return k.changeSteps(ctx, namespace, id, audit.CreateQuotaLimit, func(steps []Step) ([]Step, error) {
		return append(steps, s), nil
	})
}

// ChangeStep replaces the step that has the given id. Errors: as AddStep's.
func (k *Keeper) ChangeStep(ctx context.Context, namespace string, id, step int64, s Step) error {
	return k.changeSteps(ctx, namespace, id, audit.ChangeQuotaLimit, func(steps []Step) ([]Step, error) {
		i := slices.IndexFunc(steps, func(s Step) bool { return s.ID == step })
		if i < 0 {
			return nil, unknown(namespace)
		}
		steps[i].Kind, steps[i].Percent = s.Kind, s.Percent
		return steps, nil
	})
}

// DeleteStep deletes the step that has the given id. Error: NAME_UNKNOWN.
func (k *Keeper) DeleteStep(ctx context.Context, namespace string, id, step int64) error {
	return k.changeSteps(ctx, namespace, id, audit.DeleteQuotaLimit, func(steps []Step) ([]Step, error) {
		i := slices.IndexFunc(steps, func(s Step) bool { return s.ID == step })
		if i < 0 {
			return nil, unknown(namespace)
		}
		return slices.Delete(steps, i, i+1), nil
	})
}

func (k *Keeper) changeSteps(ctx context.Context, namespace string, id int64, kind audit.Kind, change func([]Step) ([]Step, error)) error {
	return k.changeLocked(ctx, namespace, id, kind, func(tx pgx.Tx, namespaceID int64) error {
		rows, err := tx.Query(ctx, "SELECT * FROM shown_quotas WHERE name = $1", namespace)
		if err != nil {
			return err
		}
		q, err := pgx.CollectExactlyOneRow(rows, scan)
		if err != nil {
			return err
		}
		before := len(q.Steps)
		steps, err := change(q.Steps)
		if err != nil {
			return err
		}
		if err := (Values{Steps: steps}).check(); err != nil {
			return err
		}
		if len(steps) == before { // a changed step keeps its id
			for _, s := range steps {
				_, err := tx.Exec(ctx, `
					UPDATE namespacequotalimits SET kind = $2, percent = $3, told = '{}', refused = '{}'
					WHERE id = $1 AND (kind, percent) <> ($2, $3)`, s.ID, s.Kind, s.Percent)
				if err != nil {
					return err
				}
			}
		}
		return replaceSteps(ctx, tx, namespaceID, steps)
	})
}

// changeLocked calls `change` in a transaction that has locked the namespace against deletion,
// and its quota, which must have the given id, or doesn't exist yet if id is 0. Then it writes an
// audit entry with the quota as it is now.
func (k *Keeper) changeLocked(ctx context.Context, namespace string, id int64, kind audit.Kind, change func(tx pgx.Tx, namespaceID int64) error) error {
	err := k.db.Tx(ctx, func(tx pgx.Tx) error {
		namespaceID, err := lockNamespace(ctx, tx, namespace)
		if err != nil {
			return err
		}
		if id != 0 {
			done, err := tx.Exec(ctx, "SELECT FROM namespacequotas WHERE namespace_id = $1 AND id = $2 FOR NO KEY UPDATE", namespaceID, id)
			if err == nil && done.RowsAffected() == 0 {
				return unknown(namespace)
			}
			if err != nil {
				return err
			}
		}
		if err := change(tx, namespaceID); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "SELECT purser_quota_close($1)", namespaceID); err != nil {
			return err
		}
		entry := audit.Entry{Kind: kind, Namespace: namespace, Detail: map[string]any{}}
		rows, err := tx.Query(ctx, "SELECT * FROM shown_quotas WHERE name = $1", namespace)
		if err != nil {
			return err
		}
		list, err := pgx.CollectRows(rows, scan)
		if err != nil {
			return err
		}
		for _, q := range list {
			entry.Detail = q.detail()
		}
		return audit.Append(ctx, tx, entry)
	})
	k.cache.forget(namespace)
	if err != nil && !oci.IsClientError(err) {
		return fmt.Errorf("changing the quota of %s: %w", namespace, err)
	}
	return err
}

// lockNamespace locks a namespace against deletion and returns its id. Error: NAME_UNKNOWN.
func lockNamespace(ctx context.Context, tx pgx.Tx, name string) (id int64, err error) {
	err = tx.QueryRow(ctx, "SELECT id FROM live_namespaces WHERE name = $1 FOR KEY SHARE", name).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		err = namespaceUnknown(name)
	}
	return id, err
}

// detail returns the detail of an audit entry about the quota.
func (q Quota) detail() map[string]any {
	detail := map[string]any{}
	for _, what := range things {
		if most := q.Limits.of(what); most > 0 {
			detail["limit_"+what] = most
		}
	}
	var steps []string
	for _, s := range q.Steps {
		steps = append(steps, fmt.Sprintf("%s %d%%", s.Kind, s.Percent))
	}
	if steps != nil {
		detail["limits"] = steps
	}
	return detail
}

// replaceSteps makes `steps` the steps of a quota, and sets hard_percent. The transaction has
// locked the quota.
func replaceSteps(ctx context.Context, tx pgx.Tx, namespaceID int64, steps []Step) error {
	kinds, percents := []string{}, []int{}
	for _, s := range steps {
		kinds, percents = append(kinds, string(s.Kind)), append(percents, s.Percent)
	}
	b := new(db.Batch)
	b.Exec(`
		DELETE FROM namespacequotalimits WHERE namespace_id = $1
			AND (kind, percent) NOT IN (SELECT * FROM unnest($2::text[], $3::integer[]))`, namespaceID, kinds, percents)
	b.Exec(`
		INSERT INTO namespacequotalimits (namespace_id, kind, percent) SELECT $1, * FROM unnest($2::text[], $3::integer[])
		ON CONFLICT DO NOTHING`, namespaceID, kinds, percents)
	b.Exec(`
		UPDATE namespacequotas SET hard_percent = (
			SELECT min(percent) FROM namespacequotalimits WHERE namespace_id = $1 AND kind = 'Reject')
		WHERE namespace_id = $1`, namespaceID)
	return b.Send(ctx, tx)
}

func (o Values) check() error {
	bad := func(format string, args ...any) error {
		return oci.Errorf(oci.Unsupported, format, args...).WithStatus(http.StatusBadRequest)
	}
	for i, most := range []*int64{o.Bytes, o.Repositories, o.Tags} {
		if most != nil && *most < 0 {
			return bad("limit_%s: %d is no limit: give a positive number, or 0 for none", things[i], *most)
		}
	}
	seen := make(map[Step]bool)
	for _, s := range o.Steps {
		s.ID = 0
		switch {
		case s.Kind != Warning && s.Kind != Reject:
			return bad("type: %q is neither %s nor %s", s.Kind, Warning, Reject)
		case s.Percent < 1 || s.Percent > 100:
			return bad("threshold_percent: %d is not from 1 to 100", s.Percent)
		case seen[s]:
			return bad("the quota has %s at %d%% already", s.Kind, s.Percent)
		}
		seen[s] = true
	}
	if len(o.Steps) > MaxSteps {
		return bad("a quota may have at most %d limits", MaxSteps)
	}
	return nil
}

func value(n *int64) int64 {
	if n == nil {
		return 0
	}
	return *n
}

// part returns percent hundredths of a limit, rounded down, as the database's purser_quota_part
// does. For no limit, 0, it returns the highest number.
func part(most int64, percent int) int64 {
	if most == 0 {
		return math.MaxInt64
	}
	return most/100*int64(percent) + most%100*int64(percent)/100
}
