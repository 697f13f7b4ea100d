package db

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/purser-registry/purser/internal/pgsession"
)

// Rights says what the sessions of a pool may do now with the registry's tables, views and functions.
type Rights struct {
	// Role is the role with whose rights statements run, and Login that of the DSN. They differ if
	// the role, the database or the DSN sets another role. Both are quoted for SQL.
	Role, Login string
	// Schema is the schema that has the tables, and Owner the role that owns them, quoted for SQL.
	// They are empty if there are no tables.
	Schema, Owner string
	// Standby says that the server is a standby. ReadOnly says that transactions can't write, there or
	// for another reason.
	Standby, ReadOnly bool
	// Lacks lists the objects on which Role lacks a right that Purser uses.
	Lacks []Lack
}

// Lack says which rights a role lacks on an object.
type Lack struct {
	Kind   string   `json:"kind"` // schema, table, view or function
	Name   string   `json:"name"`
	SQL    string   `json:"sql"`    // the object's name in a GRANT
	Rights []string `json:"rights"` // such as SELECT
}

// DeniedError says that the role of a pool lacks rights.
type DeniedError struct {
	What   string // the role, and what it lacks
	Remedy string // what helps
}

func (e *DeniedError) Error() string { return e.What + ": " + e.Remedy }

// ErrNoTables says that the database has none of the tables for which Rights were asked.
var ErrNoTables = errors.New("the database has none of the registry's tables, or not in a schema of search_path")

// Rights asks, in one round trip, what the pool's sessions may do with the tables of the metadata.
func (d *DB) Rights(ctx context.Context) (Rights, error) {
	return d.rights(ctx, "goose_db_version", ownObjects())
}

// StatsRights is Rights for the tables of the statistics of pulls, which may be in another database.
func (d *DB) StatsRights(ctx context.Context) (Rights, error) {
	return d.rights(ctx, "goose_stats_version", statsObjects())
}

// rights asks for the rights on the tables and views with these names, and on the functions of routines/, in
// the schema of the table `anchor`. A role that may not look into the schema doesn't see the table; so if
// sessions don't see it, it is looked for in all schemas that are closed to them.
func (d *DB) rights(ctx context.Context, anchor string, names []string) (Rights, error) {
	var r Rights
	var open bool
	err := d.Pool.QueryRow(ctx, `
		WITH place AS (
			SELECT n.oid, quote_ident(n.nspname::text) AS name, quote_ident(pg_get_userbyid(c.relowner)::text) AS owner,
				has_schema_privilege(n.oid, 'USAGE') AS open
			FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
			WHERE c.relname = $1 AND CASE WHEN to_regclass($1::text) IS NULL THEN NOT has_schema_privilege(n.oid, 'USAGE') ELSE c.oid = to_regclass($1::text) END
			LIMIT 1
		), lacks AS (
			SELECT CASE c.relkind WHEN 'v' THEN 'view' ELSE 'table' END AS kind, c.relname::text AS name,
				place.name || '.' || quote_ident(c.relname::text) AS sql,
				ARRAY(SELECT need FROM unnest(CASE WHEN c.relkind = 'v' OR c.relname = $1 THEN ARRAY['SELECT'] ELSE ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE'] END) need
					WHERE NOT has_table_privilege(c.oid, need)) AS rights
			FROM place JOIN pg_class c ON c.relnamespace = place.oid
			WHERE c.relname = ANY ($2) AND c.relkind IN ('r', 'p', 'v')
			UNION ALL
			SELECT 'function', f.proname::text, place.name || '.' || quote_ident(f.proname::text) || '(' || pg_get_function_identity_arguments(f.oid) || ')', ARRAY['EXECUTE']
			FROM place JOIN pg_proc f ON f.pronamespace = place.oid
			WHERE (starts_with(f.proname::text, 'purser_') OR starts_with(f.proname::text, 'gc_')) AND f.prorettype <> 'trigger'::regtype
				AND NOT has_function_privilege(f.oid, 'EXECUTE')
		)
		SELECT quote_ident(current_user::text), quote_ident(session_user::text), pg_is_in_recovery(), current_setting('transaction_read_only')::boolean,
			COALESCE(place.name, ''), COALESCE(place.owner, ''), COALESCE(place.open, true),
			COALESCE((SELECT json_agg(json_build_object('kind', kind, 'name', lacks.name, 'sql', sql, 'rights', rights) ORDER BY kind <> 'table', kind DESC, lacks.name)
				FROM lacks WHERE rights <> '{}'), '[]')
		FROM (SELECT) one LEFT JOIN place ON true`, anchor, append(slices.Clone(names), anchor)).
		Scan(&r.Role, &r.Login, &r.Standby, &r.ReadOnly, &r.Schema, &r.Owner, &open, &r.Lacks)
	if err != nil {
		return r, pgsession.Explain(fmt.Errorf("reaching the database: %w", explain(err)), "")
	}
	if !open {
		r.Lacks = append([]Lack{{"schema", r.Schema, r.Schema, []string{"USAGE"}}}, r.Lacks...)
	}
	return r, nil
}

// Pulls returns why pulls can't succeed with these rights, nil if they can: the role may not read what
// they need, or nothing can be written, not even that somebody logs in. `accounts` says that clients
// log in.
func (r Rights) Pulls(accounts bool) error {
	if err := r.Writes(); err != nil {
		return err
	}
	return r.denied(func(l Lack) bool {
		return needs(pullNeeds, l) || accounts && needs(logInNeeds, l)
	})
}

// All returns what the role lacks of all rights that Purser uses, nil if it lacks nothing.
func (r Rights) All() error { return r.denied(func(Lack) bool { return true }) }

// Writes returns why nothing can be written into the database, whatever the role's rights are, nil if it can,
// and ErrNoTables if there are no tables.
func (r Rights) Writes() error {
	switch {
	case r.Standby:
		return errors.New("the server is a standby, on which nothing can be written: " + standbyRemedy)
	case r.ReadOnly:
		return errors.New("nothing can be written, since transactions are read-only: " + readOnlyRemedy)
	case r.Schema == "":
		return ErrNoTables
	}
	return nil
}

const (
	standbyRemedy  = "name the primary in the DSN (with several hosts, add target_session_attrs=read-write), or promote the standby"
	readOnlyRemedy = "take default_transaction_read_only out of PostgreSQL's configuration, or RESET it for the role and the database"
)

// denied returns a DeniedError about the lacks that count, nil if there are none.
func (r Rights) denied(counts func(Lack) bool) error {
	var list []Lack
	for _, l := range r.Lacks {
		if counts(l) {
			list = append(list, l)
		}
	}
	if len(list) == 0 {
		return nil
	}
	first := list[0]
	what := fmt.Sprintf("the role %s lacks the right to %s on the %s %s", r.Role, strings.Join(first.Rights, ", "), first.Kind, first.SQL)
	if n := len(list) - 1; n > 0 {
		what += fmt.Sprintf(", and rights on %d others of the registry's objects", n)
	}
	return &DeniedError{what, r.remedy(list)}
}

// remedy returns what gives the role the rights that it lacks.
func (r Rights) remedy(list []Lack) string {
	switch l := list[0]; {
	case r.Role != r.Login:
		return fmt.Sprintf("%s, or GRANT %s TO %s", roleRemedy(r.Login, r.Role), r.Owner, r.Role)
	case len(list) > 1 && r.Owner != r.Role:
		return fmt.Sprintf("GRANT %s TO %s, or name %[1]s in the DSN", r.Owner, r.Role)
	case len(list) > 1:
		return fmt.Sprintf("GRANT ALL ON SCHEMA %s TO %s; GRANT ALL ON ALL TABLES IN SCHEMA %[1]s TO %[2]s; GRANT ALL ON ALL FUNCTIONS IN SCHEMA %[1]s TO %[2]s", r.Schema, r.Role)
	default:
		on := l.Kind + " "
		if l.Kind == "view" {
			on = ""
		}
		return fmt.Sprintf("GRANT %s ON %s%s TO %s", strings.Join(l.Rights, ", "), strings.ToUpper(on), l.SQL, r.Role)
	}
}

// roleRemedy returns what lets the sessions of `login` have its own rights, and not those of `role`.
func roleRemedy(login, role string) string {
	return fmt.Sprintf("sessions of %s act as %s: ALTER ROLE %[1]s RESET role (or ALTER DATABASE … RESET role, or take role out of the DSN)", login, role)
}

// pullNeeds has the rights on tables and views without which no pull succeeds, and logInNeeds those
// without which no client logs in to pull. A test takes each right away and pulls.
var (
	pullNeeds = map[string][]string{
		"top_level_namespaces": {"SELECT"}, "repositories": {"SELECT"}, "live_repositories": {"SELECT"},
		"manifests": {"SELECT"}, "tags": {"SELECT"}, "blobs": {"SELECT"}, "repository_blobs": {"SELECT"},
	}
	logInNeeds = map[string][]string{
		"live_namespaces": {"SELECT"}, "accounts": {"SELECT"}, "credentials": {"SELECT"}, "grants": {"SELECT"}, "teams": {"SELECT"}, "teammembers": {"SELECT"},
		"tokenkeys": {"SELECT"}, "loginfailures": {"SELECT", "INSERT", "UPDATE"},
		"purser_reserve_login": {"EXECUTE"}, "purser_decayed": {"EXECUTE"},
	}
)

// needs says whether one of the rights that are lacking is among those of a list.
func needs(list map[string][]string, l Lack) bool {
	return l.Kind == "schema" || slices.ContainsFunc(l.Rights, func(right string) bool { return slices.Contains(list[l.Name], right) })
}

// madeObject matches the statement that makes a table or a view in a migration or in routines/.
var madeObject = regexp.MustCompile(`(?m)^CREATE (?:OR REPLACE )?(?:UNLOGGED )?(?:TABLE|VIEW) (?:IF NOT EXISTS )?(\w+) `)

// madeFunction matches the statement that makes a function in a migration or in routines/.
var madeFunction = regexp.MustCompile(`(?m)^CREATE (?:OR REPLACE )?FUNCTION (\w+) `)

// ownObjects and statsObjects return the names of the tables and views that Purser makes.
var (
	ownObjects = sync.OnceValue(func() []string {
		return append(madeIn(madeObject, migrations, "migrations"), madeIn(madeObject, routines, "routines")...)
	})
	statsObjects = sync.OnceValue(func() []string { return madeIn(madeObject, statsMigrations, "stats") })
)

// madeIn returns the names of the objects that the files of a directory make by statements that `made` matches.
func madeIn(made *regexp.Regexp, files fs.FS, dir string) (names []string) {
	paths, _ := fs.Glob(files, dir+"/*.sql") //nolint:errcheck // the pattern is right
	for _, path := range paths {
		text, _ := fs.ReadFile(files, path) //nolint:errcheck // the file is in the program
		for _, m := range made.FindAllSubmatch(text, -1) {
			names = append(names, string(m[1]))
		}
	}
	return names
}

// knownNames has the names of all tables, views and functions that Purser makes, and of the tables of loose
// foreign keys and of migrations.
var knownNames = sync.OnceValue(func() map[string]bool {
	known := map[string]bool{"goose_db_version": true, "goose_stats_version": true, "detached_partitions": true}
	for _, name := range slices.Concat(ownObjects(), statsObjects(), madeIn(madeFunction, migrations, "migrations"), madeIn(madeFunction, routines, "routines")) {
		known[name] = true
	}
	return known
})

// word matches a word of an error of PostgreSQL that may be a name.
var word = regexp.MustCompile(`\w+`)

// namesKnown says whether a text names an object that a database of the registry has.
func namesKnown(text string) bool {
	return slices.ContainsFunc(word.FindAllString(text, -1), func(w string) bool {
		return knownNames()[w] || strings.HasPrefix(w, "loose_foreign_keys")
	})
}

// Denied says whether err means that the role of the sessions lacks a right that Purser needs, as after a
// REVOKE, or after an ALTER ROLE that makes its sessions another role's. The same request may succeed once an
// operator has given the right back; [DB.Rights] says which right that is.
//
// To a role that may not look into the schema any more, PostgreSQL says that a table or function doesn't exist.
// That counts only for names that a migrated database has: else a wrong statement would pass for a lost right.
// PostgreSQL says it in the server's language, so the name is looked for in the whole message.
func Denied(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	switch {
	case !ok:
		return false
	case e.Code == CodeUndefinedTable:
		return namesKnown(e.Message) && e.Routine != "errorMissingRTE" // a table that FROM lacks
	case e.Code == codeUndefinedFunction:
		return namesKnown(e.Message)
	}
	return e.Code == CodeNoPrivilege
}
