package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/loosefk"
	"github.com/purser-registry/purser/loosefk/internal/pg"
)

// AuditOptions says what an audit does.
type AuditOptions struct {
	// Repair makes Audit write deleted records for the missing parents of orphans, so that
	// the worker cleans up the orphans.
	Repair bool
	// Children are the child tables to audit, named as in the definitions. Default: all.
	Children []string
	// Page is how many distinct parents the audit looks up with one query. Default 1,000.
	Page int

	most int64 // number of parents to examine for each definition; 0: all
	rows int   // number of children to count for each parent; 0: all
}

// Orphans are the children of one definition whose parent doesn't exist.
type Orphans struct {
	Definition loosefk.Definition `json:"-"`
	Database   string             `json:"database"` // of the child
	Child      string             `json:"child"`
	Column     string             `json:"column"`
	Parent     string             `json:"parent"`
	// Pending counts children without a parent that a worker will clean up, since the
	// parent has a pending deleted record. PendingParents counts the distinct missing
	// parents of these children.
	Pending        int64 `json:"pending"`
	PendingParents int64 `json:"pending_parents"`
	// Rows counts orphans: children without a parent that no worker will clean up, since
	// the parent has no pending deleted record. Parents counts the distinct missing parents
	// of the orphans.
	Rows    int64 `json:"orphans"`
	Parents int64 `json:"orphan_parents"`
	// Examples are the keys of the first ten missing parents that Parents counts, if keys
	// are integers.
	Examples []int64 `json:"examples,omitempty"`
	// ExampleKeys are the keys of the first ten missing parents that Parents counts, if
	// keys are not integers.
	ExampleKeys []string `json:"example_keys,omitempty"`
	// Repaired is how many deleted records were written.
	Repaired int64 `json:"repaired"`
}

// Audit looks for children whose parent doesn't exist, one definition after the other. It
// reads the distinct values of the child's column in batches of AuditOptions.Page, and
// looks up each batch among the parents, in the parent's database, so its memory doesn't
// grow with the table. It counts only children that meet the definition's conditions. It
// may or may not see changes that are made while it runs.
//
// If definitions don't fit the databases, Audit returns Problems. If the audit of a
// definition fails, Audit continues with the others and then returns the joined errors.
func Audit(ctx context.Context, w *loosefk.Worker, o AuditOptions) ([]Orphans, error) {
	rs, problems, err := loosefk.Resolve(ctx, w.Options().Databases, w.Options().Definitions)
	if err != nil {
		return nil, err
	}
	if len(rs) < len(w.Options().Definitions) {
		return nil, problems
	}
	for _, child := range o.Children {
		if !slices.ContainsFunc(rs, func(r loosefk.Reference) bool { return reference{r}.isChild(child) }) {
			return nil, fmt.Errorf("looking for orphans: no definition names %s as a child", child)
		}
	}
	if o.Page <= 0 {
		o.Page = 1000
	}
	var list []Orphans
	var failed []error
	for _, resolved := range rs {
		r := reference{resolved}
		if len(o.Children) > 0 && !slices.ContainsFunc(o.Children, r.isChild) {
			continue
		}
		found, err := r.audit(ctx, o)
		if err != nil {
			failed = append(failed, fmt.Errorf("looking for orphans of %s: %w", r.Definition, err))
		}
		list = append(list, found)
		if ctx.Err() != nil {
			break
		}
	}
	return list, errors.Join(failed...)
}

// example adds the key of a missing parent to the examples, unless there are ten already.
func (o *Orphans) example(kind pg.Kind, id string) {
	if kind != "integer" {
		if len(o.ExampleKeys) < 10 {
			o.ExampleKeys = append(o.ExampleKeys, id)
		}
		return
	}
	if n, err := strconv.ParseInt(id, 10, 64); err == nil && len(o.Examples) < 10 {
		o.Examples = append(o.Examples, n)
	}
}

// examples returns the keys of up to ten missing parents as text.
func (o Orphans) examples() []string {
	list := slices.Clone(o.ExampleKeys)
	for _, n := range o.Examples {
		list = append(list, strconv.FormatInt(n, 10))
	}
	return list
}

func (r reference) isChild(name string) bool { return in(r.ChildDatabase).Table(name) == r.ChildTable }

func (r reference) audit(ctx context.Context, o AuditOptions) (Orphans, error) {
	found := Orphans{
		Definition: r.Definition, Database: r.ChildDatabase.Name, Child: r.ChildTable.String(), Column: r.Column, Parent: r.ParentTable.String(),
	}
	var after *string
	for seen := int64(0); o.most == 0 || seen < o.most; {
		ids, err := r.parentsAfter(ctx, after, o.Page)
		if err != nil || len(ids) == 0 {
			return found, err
		}
		if err := r.auditPage(ctx, o, ids, &found); err != nil {
			return found, err
		}
		after = &ids[len(ids)-1]
		seen += int64(len(ids))
	}
	return found, nil
}

// parentsAfter returns up to `limit` distinct values of the child's column in ascending
// order: the lowest values above `after` or, if that is nil, the lowest of all.
func (r reference) parentsAfter(ctx context.Context, after *string, limit int) ([]string, error) {
	args := []any{limit}
	if after != nil {
		args = append(args, *after)
	}
	return pg.Collect(ctx, r.ChildDatabase.Pool, r.parentsQuery(after == nil), args, pgx.RowTo[string])
}

// parentsQuery returns the query for the $1 lowest distinct values of the child's column
// or, if `first` is false, for the $1 lowest values above $2. The query probes the index
// once for each distinct value, however many rows have the value.
func (r reference) parentsQuery(first bool) string {
	from := ""
	if first {
		from = "IS NOT NULL"
	}
	if !first {
		from = fmt.Sprintf("> CAST($2::text AS %s)", r.Rows.Key.SQLType())
	}
	return fmt.Sprintf(`
		WITH RECURSIVE ids (id, place) AS (
			(SELECT %[1]s::%[4]s, 1 FROM %[2]s c WHERE %[1]s %[3]s ORDER BY %[1]s LIMIT 1)
			UNION ALL
			SELECT (SELECT %[1]s::%[4]s FROM %[2]s c WHERE %[1]s > ids.id ORDER BY %[1]s LIMIT 1), place + 1
			FROM ids WHERE ids.id IS NOT NULL AND place < $1
		)
		SELECT id::text FROM ids WHERE id IS NOT NULL ORDER BY place`, "c."+pg.Quote(r.Column), r.ChildTable.Quoted(), from, r.Rows.Key.SQLType())
}

// auditPage examines the children of the parents `ids` and adds the result to `found`.
// First it looks up which parents exist, then which missing parents have a pending deleted
// record, and then it counts the children. This order prevents false orphans. A parent that
// is deleted after the first step counts as existing. If a parent is missing in the first
// step because a client deleted it, its record is committed too, so the second step finds
// the record unless a worker has processed it already; then the third step finds no
// children.
func (r reference) auditPage(ctx context.Context, o AuditOptions, ids []string, found *Orphans) error {
	alive, err := in(r.ParentDatabase).Alive(ctx, r.ParentTable, ids)
	if err != nil {
		return err
	}
	dead := pg.Without(ids, alive)
	if len(dead) == 0 {
		return nil
	}
	pending, err := r.pendingOf(ctx, dead)
	if err != nil {
		return err
	}
	counts, err := r.count(ctx, dead, o.rows)
	if err != nil {
		return err
	}
	var lost []string
	for _, id := range dead {
		switch n := counts[id]; {
		case n == 0:
		case pending[id]:
			found.Pending += n
			found.PendingParents++
		default:
			found.Rows += n
			found.Parents++
			lost = append(lost, id)
			found.example(r.Rows.Key.Kind, id)
		}
	}
	if !o.Repair || len(lost) == 0 {
		return nil
	}
	repaired, err := r.record(ctx, lost)
	found.Repaired += repaired
	return err
}

// pendingOf returns which of the parents `ids` have a pending deleted record.
func (r reference) pendingOf(ctx context.Context, ids []string) (map[string]bool, error) {
	rows, err := in(r.ParentDatabase).Catalog().Query(ctx, fmt.Sprintf(`
		SELECT DISTINCT %s FROM %s d
		WHERE fully_qualified_table_name = $1 AND status = 1 AND %s`,
		r.Rows.Key.Recorded("d"), in(r.ParentDatabase).Records(), r.Rows.Key.Among("d", "$2")), r.ParentTable.String(), ids)
	if err != nil {
		return nil, err
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	pending := make(map[string]bool, len(list))
	for _, id := range list {
		pending[id] = true
	}
	return pending, err
}

// count returns, for each parent in `ids`, how many of its children the definition would
// clean up. It stops counting when it has found `most` children of a parent; 0 means no
// limit.
func (r reference) count(ctx context.Context, ids []string, most int) (map[string]int64, error) {
	args := []any{ids}
	where, _ := r.Rows.Where(func(value any) string {
		args = append(args, value)
		return fmt.Sprintf("$%d", len(args))
	})
	limit := ""
	if most > 0 {
		limit = fmt.Sprintf("LIMIT %d", most)
	}
	type row struct {
		ID   string
		Rows int64
	}
	list, err := pg.Collect(ctx, r.ChildDatabase.Pool, fmt.Sprintf(`
		SELECT p.id::text, n.rows FROM unnest(%s) AS p (id)
		CROSS JOIN LATERAL (SELECT count(*) AS rows FROM (SELECT FROM %s c WHERE %s %s) l) n`,
		r.Rows.Key.List("$1"), r.ChildTable.Quoted(), where, limit), args, pgx.RowToStructByPos[row])
	counts := make(map[string]int64, len(ids))
	for _, n := range list {
		counts[n.ID] = n.Rows
	}
	return counts, err
}

// record writes deleted records for those of the parents `ids` that still don't exist and
// have no pending record. It returns their number. One statement both checks and inserts,
// since the parents and the deleted records are in the same database, wherever the children
// are.
func (r reference) record(ctx context.Context, ids []string) (int64, error) {
	columns, values, same := "primary_key_value", "p.id", "d.primary_key_value = p.id"
	if r.Rows.Key.Kind != "integer" {
		columns, values, same = "primary_key_value, primary_key_text", "0, p.id::text", "d.primary_key_text = p.id::text"
	}
	list, err := pg.Collect(ctx, r.ParentDatabase.Pool, fmt.Sprintf(`
		INSERT INTO %[1]s (fully_qualified_table_name, %[3]s)
		SELECT $1, %[4]s FROM unnest(%[5]s) AS p (id)
		WHERE NOT EXISTS (SELECT FROM %[2]s x WHERE x.%[6]s = p.id)
			AND NOT EXISTS (
				SELECT FROM %[1]s d
				WHERE d.fully_qualified_table_name = $1 AND d.status = 1 AND %[7]s)
		RETURNING id`,
		in(r.ParentDatabase).Records(), r.ParentTable.Quoted(), columns, values, r.Rows.Key.List("$2"), pg.Quote(r.Rows.Key.Column), same), []any{r.ParentTable.String(), ids}, pgx.RowTo[int64])
	if err != nil {
		return 0, fmt.Errorf("writing deleted records of %s: %w", r.ParentTable, err)
	}
	return int64(len(list)), nil
}
