package catalog

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/oci"
)

// A quota limits the bytes, repositories and tags of a namespace. Triggers count what the
// namespace uses and refuse what exceeds a hard limit: the argument why their numbers are exact
// is in db/routines/quotas.sql. This file makes and changes quotas. quota_admit.go looks, before
// a client sends bytes, whether they would be refused; quota_count.go counts the content that
// was there before the quota; quota_notices.go tells when a limit is reached.

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

// quotaThings are the things that a quota limits.
var quotaThings = []string{"bytes", "repositories", "tags"}

// Quota is the quota of a namespace.
type Quota struct {
	ID        int64 // differs from the id of every earlier quota of the namespace
	Namespace string
	Limits    Usage
	Used      Usage
	// Counted is false until the content that the namespace had before the quota is counted.
	// Until then, Used has only the changes since, and nothing is refused.
	Counted   bool
	Steps     []QuotaStep // in the order of their percents
	CreatedAt time.Time

	namespaceID int64
}

// QuotaStep says what happens when a namespace uses a part of its limits.
type QuotaStep struct {
	ID      int64
	Kind    QuotaKind
	Percent int // of each limit, 1 to 100
}

// QuotaKind is what happens at a QuotaStep. The values are Quay's.
type QuotaKind string

const (
	QuotaWarning QuotaKind = "Warning" // a notice is sent
	QuotaReject  QuotaKind = "Reject"  // what would exceed the part is refused
)

// MaxQuotaSteps limits the steps of a quota.
const MaxQuotaSteps = 20

// NewQuota has the members of a quota that CreateQuota and ChangeQuota set. With ChangeQuota, a
// member that is nil stays as it is. A limit of 0 is no limit.
type NewQuota struct {
	Bytes, Repositories, Tags *int64
	Steps                     []QuotaStep // their ids are ignored
}

// scanQuota reads a row of the view shown_quotas.
func scanQuota(row pgx.CollectableRow) (q Quota, err error) {
	var ids []int64
	var kinds []QuotaKind
	var percents []int
	err = row.Scan(&q.ID, &q.Namespace, &q.namespaceID, &q.Limits.Bytes, &q.Limits.Repositories, &q.Limits.Tags,
		&q.Used.Bytes, &q.Used.Repositories, &q.Used.Tags, &q.Counted, &q.CreatedAt, &ids, &kinds, &percents)
	for i := range ids {
		q.Steps = append(q.Steps, QuotaStep{ids[i], kinds[i], percents[i]})
	}
	return q, err
}

// Quotas lists up to n quotas of namespaces whose names come after `after`, in byte order.
// `next` is the value of `after` for the next page, "" if there is none.
func (c *Catalog) Quotas(ctx context.Context, after string, n int) (list []Quota, next string, err error) {
	rows, err := c.db.Pool.Query(ctx, "SELECT * FROM shown_quotas WHERE name > $1 ORDER BY name LIMIT $2", after, n+1)
	if err == nil {
		list, err = pgx.CollectRows(rows, scanQuota)
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

// Quota returns the quota of a namespace; `some` is false if the namespace has none. Error:
// NAME_UNKNOWN if there is no such namespace.
func (c *Catalog) Quota(ctx context.Context, namespace string) (q Quota, some bool, err error) {
	var exists bool
	b := new(batch)
	b.row([]any{&exists}, "SELECT EXISTS (SELECT FROM live_namespaces WHERE name = $1)", namespace)
	b.Queue("SELECT * FROM shown_quotas WHERE name = $1", namespace).Query(func(rows pgx.Rows) error {
		list, err := pgx.CollectRows(rows, scanQuota)
		if len(list) > 0 {
			q, some = list[0], true
		}
		return err
	})
	if err := b.send(ctx, c.db.Pool); err != nil {
		return q, false, fmt.Errorf("reading the quota of %s: %w", namespace, err)
	}
	if !exists {
		return q, false, namespaceUnknown(namespace)
	}
	return q, some, nil
}

// quotaUnknown returns the client's error for a quota that doesn't exist.
func quotaUnknown(namespace string) error {
	return oci.Errorf(oci.NameUnknown, "namespace %s has no such quota", namespace).WithDetail(map[string]string{"name": namespace})
}

// CreateQuota gives a namespace a quota. The content that the namespace has is counted by
// CountQuotas; until then nothing is refused. Errors: NAME_UNKNOWN; UNSUPPORTED with status 400 if
// the namespace has a quota, or if a member of `o` is invalid.
func (c *Catalog) CreateQuota(ctx context.Context, namespace string, o NewQuota) error {
	if err := o.check(); err != nil {
		return err
	}
	return c.changeQuota(ctx, namespace, 0, audit.CreateQuota, func(tx pgx.Tx, namespaceID int64) error {
		done, err := tx.Exec(ctx, `
			INSERT INTO namespacequotas (namespace_id, bytes_limit, repositories_limit, tags_limit)
			VALUES ($1, NULLIF($2::bigint, 0), NULLIF($3::bigint, 0), NULLIF($4::bigint, 0)) ON CONFLICT DO NOTHING`,
			namespaceID, value(o.Bytes), value(o.Repositories), value(o.Tags))
		if err == nil && done.RowsAffected() == 0 {
			return exists("the quota of namespace", namespace)
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

// ChangeQuota changes the limits of a quota. Steps that stay the same keep their ids. Content
// above a lower limit stays; the namespace then can't grow. Errors as CreateQuota's.
func (c *Catalog) ChangeQuota(ctx context.Context, namespace string, id int64, o NewQuota) error {
	if err := o.check(); err != nil {
		return err
	}
	return c.changeQuota(ctx, namespace, id, audit.ChangeQuota, func(tx pgx.Tx, namespaceID int64) error {
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

// DeleteQuota takes a namespace's quota away. Error: NAME_UNKNOWN.
func (c *Catalog) DeleteQuota(ctx context.Context, namespace string, id int64) error {
	return c.changeQuota(ctx, namespace, id, audit.DeleteQuota, func(tx pgx.Tx, namespaceID int64) error {
		_, err := tx.Exec(ctx, "DELETE FROM namespacequotas WHERE namespace_id = $1", namespaceID)
		return err
	})
}

// RecountQuota asks for the content of a namespace to be counted again, which CountQuotas does.
// Meanwhile the old numbers hold. Error: NAME_UNKNOWN.
func (c *Catalog) RecountQuota(ctx context.Context, namespace string, id int64) error {
	return c.changeQuota(ctx, namespace, id, audit.RecountQuota, func(tx pgx.Tx, namespaceID int64) error {
		_, err := tx.Exec(ctx, "UPDATE namespacequotas SET recount = true WHERE namespace_id = $1", namespaceID)
		return err
	})
}

// AddQuotaStep adds a step to a quota. Errors: NAME_UNKNOWN; UNSUPPORTED with status 400 if the
// quota has the same step, or MaxQuotaSteps.
func (c *Catalog) AddQuotaStep(ctx context.Context, namespace string, id int64, s QuotaStep) error {
	return c.changeSteps(ctx, namespace, id, audit.CreateQuotaLimit, func(steps []QuotaStep) ([]QuotaStep, error) {
		return append(steps, s), nil
	})
}

// ChangeQuotaStep replaces the step that has the given id. Errors: as AddQuotaStep's.
func (c *Catalog) ChangeQuotaStep(ctx context.Context, namespace string, id, step int64, s QuotaStep) error {
	return c.changeSteps(ctx, namespace, id, audit.ChangeQuotaLimit, func(steps []QuotaStep) ([]QuotaStep, error) {
		i := slices.IndexFunc(steps, func(s QuotaStep) bool { return s.ID == step })
		if i < 0 {
			return nil, quotaUnknown(namespace)
		}
		steps[i].Kind, steps[i].Percent = s.Kind, s.Percent
		return steps, nil
	})
}

// DeleteQuotaStep deletes the step that has the given id. Error: NAME_UNKNOWN.
func (c *Catalog) DeleteQuotaStep(ctx context.Context, namespace string, id, step int64) error {
	return c.changeSteps(ctx, namespace, id, audit.DeleteQuotaLimit, func(steps []QuotaStep) ([]QuotaStep, error) {
		i := slices.IndexFunc(steps, func(s QuotaStep) bool { return s.ID == step })
		if i < 0 {
			return nil, quotaUnknown(namespace)
		}
		return slices.Delete(steps, i, i+1), nil
	})
}

func (c *Catalog) changeSteps(ctx context.Context, namespace string, id int64, kind audit.Kind, change func([]QuotaStep) ([]QuotaStep, error)) error {
	return c.changeQuota(ctx, namespace, id, kind, func(tx pgx.Tx, namespaceID int64) error {
		rows, err := tx.Query(ctx, "SELECT * FROM shown_quotas WHERE name = $1", namespace)
		if err != nil {
			return err
		}
		q, err := pgx.CollectExactlyOneRow(rows, scanQuota)
		if err != nil {
			return err
		}
		before := len(q.Steps)
		steps, err := change(q.Steps)
		if err != nil {
			return err
		}
		if err := (NewQuota{Steps: steps}).check(); err != nil {
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

// changeQuota calls `change` in a transaction that has locked the namespace against deletion,
// and its quota, which must have the given id, or doesn't exist yet if id is 0. Then it writes an
// audit entry with the quota as it is now.
func (c *Catalog) changeQuota(ctx context.Context, namespace string, id int64, kind audit.Kind, change func(tx pgx.Tx, namespaceID int64) error) error {
	err := c.db.Tx(ctx, func(tx pgx.Tx) error {
		namespaceID, _, err := lockScope(ctx, tx, ProtectionScope{Namespace: namespace})
		if err != nil {
			return err
		}
		if id != 0 {
			done, err := tx.Exec(ctx, "SELECT FROM namespacequotas WHERE namespace_id = $1 AND id = $2 FOR NO KEY UPDATE", *namespaceID, id)
			if err == nil && done.RowsAffected() == 0 {
				return quotaUnknown(namespace)
			}
			if err != nil {
				return err
			}
		}
		if err := change(tx, *namespaceID); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "SELECT purser_quota_close($1)", *namespaceID); err != nil {
			return err
		}
		entry := audit.Entry{Kind: kind, Namespace: namespace, Detail: map[string]any{}}
		rows, err := tx.Query(ctx, "SELECT * FROM shown_quotas WHERE name = $1", namespace)
		if err != nil {
			return err
		}
		list, err := pgx.CollectRows(rows, scanQuota)
		if err != nil {
			return err
		}
		for _, q := range list {
			entry.Detail = q.detail()
		}
		return audit.Append(ctx, tx, entry)
	})
	c.quotas.forget(namespace)
	if err != nil && !isClientError(err) {
		return fmt.Errorf("changing the quota of %s: %w", namespace, err)
	}
	return err
}

// detail returns the detail of an audit entry about the quota.
func (q Quota) detail() map[string]any {
	detail := map[string]any{}
	for _, what := range quotaThings {
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
func replaceSteps(ctx context.Context, tx pgx.Tx, namespaceID int64, steps []QuotaStep) error {
	kinds, percents := []string{}, []int{}
	for _, s := range steps {
		kinds, percents = append(kinds, string(s.Kind)), append(percents, s.Percent)
	}
	b := new(batch)
	b.exec(`
		DELETE FROM namespacequotalimits WHERE namespace_id = $1
			AND (kind, percent) NOT IN (SELECT * FROM unnest($2::text[], $3::integer[]))`, namespaceID, kinds, percents)
	b.exec(`
		INSERT INTO namespacequotalimits (namespace_id, kind, percent) SELECT $1, * FROM unnest($2::text[], $3::integer[])
		ON CONFLICT DO NOTHING`, namespaceID, kinds, percents)
	b.exec(`
		UPDATE namespacequotas SET hard_percent = (
			SELECT min(percent) FROM namespacequotalimits WHERE namespace_id = $1 AND kind = 'Reject')
		WHERE namespace_id = $1`, namespaceID)
	return b.send(ctx, tx)
}

func (o NewQuota) check() error {
	bad := func(format string, args ...any) error {
		return oci.Errorf(oci.Unsupported, format, args...).WithStatus(http.StatusBadRequest)
	}
	for i, most := range []*int64{o.Bytes, o.Repositories, o.Tags} {
		if most != nil && *most < 0 {
			return bad("limit_%s: %d is no limit: give a positive number, or 0 for none", quotaThings[i], *most)
		}
	}
	seen := make(map[QuotaStep]bool)
	for _, s := range o.Steps {
		s.ID = 0
		switch {
		case s.Kind != QuotaWarning && s.Kind != QuotaReject:
			return bad("type: %q is neither %s nor %s", s.Kind, QuotaWarning, QuotaReject)
		case s.Percent < 1 || s.Percent > 100:
			return bad("threshold_percent: %d is not from 1 to 100", s.Percent)
		case seen[s]:
			return bad("the quota has %s at %d%% already", s.Kind, s.Percent)
		}
		seen[s] = true
	}
	if len(o.Steps) > MaxQuotaSteps {
		return bad("a quota may have at most %d limits", MaxQuotaSteps)
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
