package pg

import (
	"fmt"
	"strings"
)

// Rows describes which rows of a child table a definition cleans up.
type Rows struct {
	Table      Table
	Column     string // the column that refers to the parent
	Key        Key    // the parent's key
	Conditions []Values
	// Target holds the column to update and its new value. Rows whose target column has
	// this value already are not cleaned up. Target is nil if the clean-up deletes the rows,
	// or sets the column that refers to the parent (Rows.Column) to NULL.
	Target *Values
}

// Values are a column and a list of values for it, in PostgreSQL's text form; nil is NULL.
type Values struct {
	Column string
	Type   string // of the column, in SQL
	Equals string // the operator that compares its values
	List   []*string
}

// Where returns an SQL condition that selects the children (alias c) of a parent (alias p),
// and an SQL expression for the new value of the target column, or "". The function `arg`
// adds a value to the statement's arguments and returns the value's placeholder.
func (r Rows) Where(arg func(value any) string) (where, value string) {
	all := []string{"c." + Quote(r.Column) + " OPERATOR(pg_catalog.=) p.id"}
	for _, cond := range r.Conditions {
		var any []string
		for _, v := range cond.List {
			if v == nil {
				any = append(any, fmt.Sprintf("c.%s IS NULL", Quote(cond.Column)))
			} else {
				any = append(any, fmt.Sprintf("c.%s %s CAST(%s::text AS %s)", Quote(cond.Column), cond.Equals, arg(*v), cond.Type))
			}
		}
		all = append(all, "("+strings.Join(any, " OR ")+")")
	}
	if t := r.Target; t != nil {
		value = fmt.Sprintf("CAST(%s::text AS %s)", arg(t.List[0]), t.Type)
		// This expression is equivalent to IS DISTINCT FROM, for which NULL differs from
		// each value. IS DISTINCT FROM itself isn't used, because SQL can't name the schema
		// of the operator with which it compares.
		all = append(all, fmt.Sprintf("(c.%[1]s %[2]s %[3]s) IS NOT TRUE AND (c.%[1]s IS NOT NULL OR %[3]s IS NOT NULL)", Quote(t.Column), t.Equals, value))
	}
	return strings.Join(all, " AND "), value
}
