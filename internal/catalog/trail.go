package catalog

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Audit has the statements that write changes to the audit log. The catalog knows what has
// changed; package audit, on the same layer, knows the log's table; the code that creates
// the catalog connects the two. The zero value writes nothing.
//
// The statement that changes something, or the last one of its transaction, also writes the
// entries: a change and its entry are committed together, and the entry costs no round trip.
// The log's partitions are locked for a moment now and then; so a transaction that waits for
// the log takes no other lock after it.
type Audit struct {
	// Insert returns a statement that writes an entry for each row of a query. Arguments $1
	// to $4 are those of Who, and the query's own begin with $5. The query's columns are
	// kind, namespace, repository, repository_id, tag, digest, policy, run and detail.
	Insert func(query string) string
	// Who returns the four arguments that identify the requesting client.
	Who func(ctx context.Context) []any
}

// orNone replaces missing functions by ones whose statement takes the same arguments and
// writes nothing.
func (a Audit) orNone() Audit {
	if a.Insert != nil && a.Who != nil {
		return a
	}
	return Audit{
		Insert: func(query string) string {
			return "SELECT $1::text, $2::text, $3::text, $4::text FROM (" + query + ") e WHERE false"
		},
		Who: func(context.Context) []any { return []any{"", "", "", ""} },
	}
}

// entries returns a statement that writes the audit entries of a query with the columns
// kind, namespace, repository, repository_id, tag, digest and detail. It may be a part of
// WITH. Its arguments are those returned by who.
func (c *Catalog) entries(query string) string {
	return c.opt.Audit.Insert("SELECT *, NULL::uuid AS policy, NULL::uuid AS run FROM (" + query + ") q")
}

// who returns the arguments of a statement made by entries: the client's, then the query's
// own.
func (c *Catalog) who(ctx context.Context, args ...any) []any {
	return append(c.opt.Audit.Who(ctx), args...)
}

// digestText returns the SQL that converts a digest column to text.
func digestText(column string) string {
	return "CASE get_byte(" + column + ", 0) WHEN 1 THEN 'sha256:' ELSE 'sha512:' END || encode(substring(" + column + " FROM 2), 'hex')"
}

// AliveRepositories locks those of the repositories that exist, in the order of their ids,
// until the transaction ends, and returns them. It is for audit entries that are written
// later than the events that they record.
func AliveRepositories(ctx context.Context, tx pgx.Tx, ids []int64) ([]int64, error) {
	rows, err := tx.Query(ctx, "SELECT id FROM repositories WHERE id = ANY ($1) ORDER BY id FOR KEY SHARE", ids)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[int64])
}
