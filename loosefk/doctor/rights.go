package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/loosefk"
	"github.com/purser-registry/purser/loosefk/internal/pg"
)

// workerRights reports rights that the current user, with whose rights the worker runs,
// lacks on the table of deleted records.
func (e *examination) workerRights(ctx context.Context, db *loosefk.Database) error {
	records, detached := in(db).Table(pg.RecordsTable), in(db).Table(pg.DetachedTable)
	var user, owner string
	var owns, creates bool
	err := in(db).Catalog().QueryRow(ctx, `
		SELECT current_user::text, pg_get_userbyid(c.relowner)::text, pg_has_role(c.relowner, 'USAGE'), has_schema_privilege($2, 'CREATE')
		FROM pg_class c WHERE c.oid = to_regclass($1)`, in(db).Records(), in(db).Schema()).Scan(&user, &owner, &owns, &creates)
	if err != nil {
		return err
	}
	if !owns {
		e.add(SeverityError, db, records, fmt.Sprintf("GRANT %s TO %s", pg.Quote(owner), pg.Quote(user)),
			"%s doesn't own %s, as %s does, so it can't add and detach its partitions", user, records, owner)
	}
	if !creates {
		e.add(SeverityError, db, records, fmt.Sprintf("GRANT CREATE ON SCHEMA %s TO %s", pg.Quote(in(db).Schema()), pg.Quote(user)),
			"%s may not create tables in schema %s, so it can't add partitions", user, in(db).Schema())
	}
	return e.rights(ctx, db, []need{
		{records, []string{"SELECT", "INSERT", "UPDATE"}},
		{detached, []string{"SELECT", "INSERT", "UPDATE", "DELETE"}},
	})
}

// need lists the rights that the worker must have on a table.
type need struct {
	table  pg.Table
	rights []string
}

// tableRights reports rights that the current user, with whose rights the worker runs,
// lacks on parent and child tables.
func (e *examination) tableRights(ctx context.Context, db *loosefk.Database) error {
	var needs []need
	add := func(t pg.Table, rights ...string) {
		i := slices.IndexFunc(needs, func(n need) bool { return n.table == t })
		if i < 0 {
			i = len(needs)
			needs = append(needs, need{table: t})
		}
		for _, right := range rights {
			if !slices.Contains(needs[i].rights, right) {
				needs[i].rights = append(needs[i].rights, right)
			}
		}
	}
	for _, r := range e.rs {
		if r.ParentDatabase == db {
			add(r.ParentTable, "SELECT")
		}
		if r.ChildDatabase == db {
			add(r.ChildTable, "SELECT", "UPDATE") // FOR UPDATE needs the right UPDATE
			if r.OnDelete == loosefk.AsyncDelete {
				add(r.ChildTable, "DELETE")
			}
		}
	}
	return e.rights(ctx, db, needs)
}

// rights reports which rights in `needs` the current user lacks, and tables where row
// security hides rows from the current user.
func (e *examination) rights(ctx context.Context, db *loosefk.Database, needs []need) error {
	for _, n := range needs {
		var user string
		var there, usage, hides *bool
		var missing []string
		err := in(db).Catalog().QueryRow(ctx, `
			SELECT current_user::text, c.oid IS NOT NULL, has_schema_privilege($2, 'USAGE'), row_security_active(c.oid),
				ARRAY(SELECT r FROM unnest($3::text[]) r WHERE NOT has_table_privilege(c.oid, r))
			FROM (SELECT (SELECT k.oid FROM pg_class k JOIN pg_namespace s ON s.oid = k.relnamespace
				WHERE s.nspname = $2 AND k.relname = $1)) c (oid)`, n.table.Name, n.table.Schema, n.rights).
			Scan(&user, &there, &usage, &hides, &missing)
		if err != nil {
			return err
		}
		if !*there {
			continue // another check reported it
		}
		if usage != nil && !*usage {
			e.add(SeverityError, db, n.table, fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO %s", pg.Quote(n.table.Schema), pg.Quote(user)),
				"%s may not use schema %s", user, n.table.Schema)
		}
		if len(missing) > 0 {
			list := strings.Join(missing, ", ")
			e.add(SeverityError, db, n.table, fmt.Sprintf("GRANT %s ON %s TO %s", list, n.table.Quoted(), pg.Quote(user)),
				"%s lacks the right to %s on %s", user, list, n.table)
		}
		if hides != nil && *hides {
			e.add(SeverityError, db, n.table, fmt.Sprintf("ALTER ROLE %s BYPASSRLS", pg.Quote(user)),
				"row security hides rows of %s from %s: the worker would take hidden rows for deleted", n.table, user)
		}
	}
	return nil
}

// hardKey is a foreign key, which PostgreSQL itself enforces, from or to a table that the
// worker cleans up.
type hardKey struct {
	name     string
	from, to pg.Table
	column   string // several columns are separated by commas
	action   string // pg_constraint.confdeltype: a, r, c, n or d
	indexed  bool   // an index begins with its columns
	fromKind string // pg_class.relkind
	clause   string // the key's SQL, beginning with FOREIGN KEY
}

// hardKeys lists the foreign keys of a database whose child or parent is one of the tables.
func hardKeys(ctx context.Context, d *loosefk.Database, tables []pg.Table) ([]hardKey, error) {
	names := make([]string, len(tables))
	for i, t := range tables {
		names[i] = t.Quoted()
	}
	rows, err := in(d).Catalog().Query(ctx, `
		SELECT k.conname, fn.nspname, f.relname, tn.nspname, t.relname, f.relkind::text, k.confdeltype::text,
			(SELECT string_agg(a.attname, ', ' ORDER BY u.place) FROM unnest(k.conkey) WITH ORDINALITY AS u (num, place)
				JOIN pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = u.num),
			EXISTS (SELECT FROM pg_index i WHERE i.indrelid = k.conrelid AND i.indisvalid AND i.indpred IS NULL AND i.indkey[0] = ANY (k.conkey)),
			pg_get_constraintdef(k.oid)
		FROM pg_constraint k
		JOIN pg_class f ON f.oid = k.conrelid JOIN pg_namespace fn ON fn.oid = f.relnamespace
		JOIN pg_class t ON t.oid = k.confrelid JOIN pg_namespace tn ON tn.oid = t.relnamespace
		WHERE k.contype = 'f' AND k.conparentid = 0
			AND (k.confrelid = ANY (SELECT to_regclass(unnest($1::text[])))
				OR k.conrelid = ANY (SELECT to_regclass(unnest($1::text[]))))
		ORDER BY 2, 3, 1`, names)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (k hardKey, err error) {
		err = row.Scan(&k.name, &k.from.Schema, &k.from.Name, &k.to.Schema, &k.to.Name, &k.fromKind, &k.action, &k.column, &k.indexed, &k.clause)
		return k, err
	})
}

// hardKeys examines two kinds of foreign keys: foreign keys that refer to a child table,
// because PostgreSQL enforces them when the worker deletes a child; and foreign keys that
// still exist although a loose foreign key replaces them.
func (e *examination) hardKeys(ctx context.Context, db *loosefk.Database, here references) error {
	var tables []pg.Table
	for _, r := range here {
		tables = append(tables, r.ChildTable)
	}
	keys, err := hardKeys(ctx, db, tables)
	if err != nil {
		return err
	}
	for _, k := range keys {
		e.beside(db, k, here)
		for i, r := range here {
			first := !slices.ContainsFunc(here[:i], func(o reference) bool { return o.ChildTable == r.ChildTable && o.OnDelete == loosefk.AsyncDelete })
			if r.OnDelete == loosefk.AsyncDelete && r.ChildTable == k.to && first {
				e.underneath(db, k, here)
			}
		}
	}
	return nil
}

// beside reports the foreign key k if it still exists although a loose foreign key replaces
// it.
func (e *examination) beside(db *loosefk.Database, k hardKey, here references) {
	for _, r := range here {
		if r.Local() && r.ChildTable == k.from && r.ParentTable == k.to && r.Column == k.column {
			e.add(SeverityInfo, db, k.from, dropConstraint(k), "the foreign key %s is still there beside the loose one: it does the work, and the worker finds nothing to do", k.name)
			return
		}
	}
}

func dropConstraint(k hardKey) string {
	return fmt.Sprintf("ALTER TABLE %s DROP CONSTRAINT %s", k.from.Quoted(), pg.Quote(k.name))
}

// underneath reports the foreign key k, which refers to rows that the worker deletes, in
// three cases: if no index finds rows by the columns of k; if k cascades or sets columns, so
// that a query of a definition without delete_limit may change any number of rows; and if k
// would make the deletion fail. It doesn't report the last two cases if an earlier definition
// has deleted the referring rows by then.
func (e *examination) underneath(db *loosefk.Database, k hardKey, here references) {
	if !k.indexed && k.from != k.to {
		e.add(SeverityWarning, db, k.from, fmt.Sprintf("CREATE INDEX%s ON %s (%s)", concurrently(k.fromKind), k.from.Quoted(), quoteList(k.column)),
			"the foreign key %s has no index: for each row that is deleted from %s PostgreSQL reads all of %s", k.name, k.to, k.from)
	}
	var heavy, unaided []string // definitions without delete_limit; definitions before which no other deletes rows of k.from
	for _, r := range here {
		if r.ChildTable != k.to || r.OnDelete != loosefk.AsyncDelete {
			continue
		}
		if r.DeleteLimit == 0 {
			heavy = append(heavy, r.Definition.String())
		}
		if !e.before(r, k.from) {
			unaided = append(unaided, r.Definition.String())
		}
	}
	switch {
	case (k.action == "c" || k.action == "n" || k.action == "d") && len(heavy) > 0 && len(unaided) > 0:
		what := map[string]string{"c": "deleted", "n": "updated", "d": "updated"}[k.action]
		e.add(SeverityWarning, db, k.from, fmt.Sprintf("loosefk convert '^%s$' '^%s$' '^%s$'", in(db).Plain(k.from), in(db).Plain(k.to), k.column),
			"rows of %s are %s by the foreign key %s inside the batches of %s, however many they are: convert it too, or say delete_limit in the definition",
			k.from, what, k.name, heavy[0])
	case (k.action == "a" || k.action == "r") && len(unaided) > 0:
		e.add(SeverityError, db, k.from, fmt.Sprintf("%s, ADD CONSTRAINT %s %s ON DELETE CASCADE", dropConstraint(k), pg.Quote(k.name), plainClause(k.clause)),
			"the foreign key %s keeps rows of %s from being deleted while rows of %s refer to them: have a definition of the same parent clean up %s before %s, or let the key cascade",
			k.name, k.to, k.from, k.from, unaided[0])
	}
}

// before returns whether the worker, for a deleted parent of r, deletes the rows of `table`
// before it deletes the children of r.
func (e *examination) before(r reference, table pg.Table) bool {
	for _, o := range e.rs {
		if o.Same(r.Definition) {
			return false
		}
		if o.ParentDatabase == r.ParentDatabase && o.ParentTable == r.ParentTable && o.ChildDatabase == r.ChildDatabase && o.ChildTable == table &&
			o.OnDelete == loosefk.AsyncDelete && len(o.Conditions) == 0 {
			return true
		}
	}
	return false
}

func concurrently(kind string) string {
	if kind == "p" {
		return ""
	}
	return " CONCURRENTLY"
}

// quoteList quotes each name of a list that is separated by commas.
func quoteList(names string) string {
	list := strings.Split(names, ", ")
	for i := range list {
		list[i] = pg.Quote(list[i])
	}
	return strings.Join(list, ", ")
}

// plainClause returns the clause of a foreign key up to ON DELETE, NOT VALID or DEFERRABLE.
func plainClause(clause string) string {
	for _, cut := range []string{" ON DELETE ", " NOT VALID", " DEFERRABLE"} {
		clause, _, _ = strings.Cut(clause, cut)
	}
	return clause
}
