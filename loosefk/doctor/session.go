package doctor

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/loosefk"
	"github.com/purser-registry/purser/loosefk/internal/pg"
)

// sessionSetting is a PostgreSQL setting of the worker's sessions, with the values with
// which the worker can work.
type sessionSetting struct {
	name string
	fine []string // the values with which the worker can work
	text string   // what goes wrong with another value; %s stands for the value
}

var sessionSettings = []sessionSetting{
	{"default_transaction_read_only", []string{"off"}, "the worker's transactions are read-only: it can't clean up"},
	{"session_replication_role", []string{"origin", "local"}, "no trigger fires for what sessions delete (%s): the worker takes that back for itself, and can't clean up if it may not"},
}

// session reports PostgreSQL settings with which the worker can't work, whether they come
// from the database, the role or the DSN. It reads them on a connection of the worker's
// pool.
func (e *examination) session(ctx context.Context, db *loosefk.Database) error {
	if !slices.ContainsFunc(e.rs, func(r reference) bool { return r.ParentDatabase == db || r.ChildDatabase == db }) {
		return nil
	}
	var standby bool
	if err := in(db).Catalog().QueryRow(ctx, "SELECT pg_is_in_recovery()").Scan(&standby); err != nil {
		return err
	}
	if standby {
		e.list = append(e.list, Finding{SeverityError, db.Name, "", "this is a standby, which is read-only: connect to the primary", ""})
		return nil
	}
	for _, s := range sessionSettings {
		var value, source, role, database string
		err := in(db).Catalog().QueryRow(ctx, "SELECT setting, source, current_user::text, current_database()::text FROM pg_settings WHERE name = $1", s.name).
			Scan(&value, &source, &role, &database)
		if err != nil {
			return err
		}
		if slices.Contains(s.fine, value) {
			continue
		}
		reset, where := "RESET "+s.name, ""
		switch source {
		case "database":
			reset = fmt.Sprintf("ALTER DATABASE %s %s", pg.Quote(database), reset)
		case "user":
			reset = fmt.Sprintf("ALTER ROLE %s %s", pg.Quote(role), reset)
		case "database user":
			reset = fmt.Sprintf("ALTER ROLE %s IN DATABASE %s %s", pg.Quote(role), pg.Quote(database), reset)
		default: // from the DSN, the server's configuration and so on
			reset, where = "", fmt.Sprintf(". Its setting %s comes from: %s", s.name, source)
		}
		text := s.text
		if args := fmt.Sprintf("%s is %s", s.name, value); value != "on" {
			text = fmt.Sprintf(s.text, args)
		}
		if reset != "" && s.name == "default_transaction_read_only" { // the setting holds for the session that runs the remedy, too
			reset = "BEGIN READ WRITE; " + reset + "; COMMIT"
		}
		e.list = append(e.list, Finding{SeverityError, db.Name, "", text + where, reset})
	}
	return nil
}

// columnDefault is the default value that a column of the table of deleted records must
// have.
type columnDefault struct {
	column string
	want   []string // accepted values, as pg_get_expr writes them; nil: any
	set    string   // the expression for SET DEFAULT
	s      Severity
	text   string // what happens without the default
}

// defaults reports columns of the table of deleted records that have lost the default value
// on which the trigger relies, and records without consume_after, which no worker loads.
func (e *examination) defaults(ctx context.Context, db *loosefk.Database) error {
	records := in(db).Table(pg.RecordsTable)
	rows, err := in(db).Catalog().Query(ctx, `
		SELECT a.attname::text, COALESCE(pg_get_expr(d.adbin, d.adrelid), '')
		FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
		WHERE a.attrelid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped AND a.attidentity = ''`, in(db).Records())
	if err != nil {
		return err
	}
	found := map[string]string{}
	var column, expr string
	if _, err := pgx.ForEachRow(rows, []any{&column, &expr}, func() error { found[column] = expr; return nil }); err != nil {
		return err
	}
	now := []string{"now()", "CURRENT_TIMESTAMP", "transaction_timestamp()", "statement_timestamp()", "clock_timestamp()"}
	const fail = "deletes from parents fail"
	for _, c := range []columnDefault{
		{"id", nil, fmt.Sprintf("nextval(%s)", pg.Literal(in(db).Table(pg.RecordsTable+"_id_seq").Quoted())), SeverityError, fail},
		{"status", []string{"1", "'1'::smallint"}, "1", SeverityError, fail + ", or their records don't count as pending"},
		{"created_at", now, "now()", SeverityError, fail + ", or partitions don't rotate in time"},
		{"consume_after", now, "now()", SeverityError, "no worker processes new records"},
		{"cleanup_attempts", []string{"0", "'0'::smallint"}, "0", SeverityWarning, "attempts aren't counted"},
	} {
		expr, there := found[c.column]
		if there && (c.want == nil && expr != "" || slices.Contains(c.want, expr)) {
			continue
		}
		what := "no default"
		if expr != "" {
			what = "the default " + expr
		}
		e.add(c.s, db, records, fmt.Sprintf("ALTER TABLE %s ALTER COLUMN %s SET DEFAULT %s", in(db).Records(), c.column, c.set),
			"the column %s has %s: %s", c.column, what, c.text)
	}
	var timeless bool
	err = in(db).Catalog().QueryRow(ctx, fmt.Sprintf("SELECT EXISTS (SELECT FROM %s WHERE status = %d AND consume_after IS NULL)", in(db).Records(), pg.StatusPending)).Scan(&timeless)
	if err == nil && timeless {
		e.add(SeverityError, db, records, fmt.Sprintf("UPDATE %s SET consume_after = now() WHERE status = %d AND consume_after IS NULL", in(db).Records(), pg.StatusPending),
			"pending records have no time in consume_after: no worker processes them")
	}
	return err
}
