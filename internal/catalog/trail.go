package catalog

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Audit says how changes are written to the audit log. The catalog knows what has
// changed, and the log, a package of the same height, its own table; so whoever
// makes the catalog brings them together. The zero value writes nothing.
//
// Entries are written by the statement that changes something, or by the last one
// of its transaction: a change and its entry are there together or not at all, and
// the entry costs no round trip. Who waits for the log, whose partitions are locked
// for a moment now and then, takes no other lock after it.
type Audit struct {
	// Insert makes a statement that writes an entry for each row of a query. Its
	// first four arguments are those of Who, and the query's own begin with $5. The
	// query's columns are kind, namespace, repository, repository_id, tag, digest,
	// policy, run and detail.
	Insert func(query string) string
	// Who are the four arguments that say who asks.
	Who func(ctx context.Context) []any
}

// orNone stands in for what is missing: a statement that writes nothing, with the
// same arguments.
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

// entries is a statement that writes the entries of a query of kind, namespace,
// repository, repository_id, tag, digest and detail. It may be the body of a part
// of WITH. Its arguments are those of who.
func (c *Catalog) entries(query string) string {
	return c.opt.Audit.Insert("SELECT *, NULL::uuid AS policy, NULL::uuid AS run FROM (" + query + ") q")
}

// who are the arguments of a statement with entries: who asks, then its own.
func (c *Catalog) who(ctx context.Context, args ...any) []any {
	return append(c.opt.Audit.Who(ctx), args...)
}

// digestText is a digest's text in SQL.
func digestText(column string) string {
	return "CASE get_byte(" + column + ", 0) WHEN 1 THEN 'sha256:' ELSE 'sha512:' END || encode(substring(" + column + " FROM 2), 'hex')"
}

// AliveRepositories locks those of the repositories that exist, in the order of
// their ids and until the transaction ends, and returns them: for entries of the
// audit log that are written later than what they tell of happens.
func AliveRepositories(ctx context.Context, tx pgx.Tx, ids []int64) ([]int64, error) {
	rows, err := tx.Query(ctx, "SELECT id FROM repositories WHERE id = ANY ($1) ORDER BY id FOR KEY SHARE", ids)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[int64])
}
