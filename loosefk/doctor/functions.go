package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/purser-registry/purser/loosefk"
	"github.com/purser-registry/purser/loosefk/internal/installed"
	"github.com/purser-registry/purser/loosefk/internal/pg"
)

// installedFunction describes an SQL function of loose foreign keys as it exists in a
// database.
type installedFunction struct {
	there, definer, pinned bool
	body, owner            string
	allowed                bool // the function's owner may insert deleted records
	public                 bool // everybody may execute it
	grantees               []string
}

// functions examines the SQL functions that Install creates: their version, their bodies,
// and which roles may execute them.
func (e *examination) functions(ctx context.Context, db *loosefk.Database) error {
	s, records := installed.Schema(in(db).Schema()), in(db).Table(pg.RecordsTable)
	version, err := installed.VersionIn(ctx, in(db))
	if err != nil {
		return err
	}
	install := "loosefk install " + db.Name
	switch {
	case version < installed.Version:
		e.add(SeverityError, db, records, install, "version %d of loose foreign keys is installed, this is version %d", version, installed.Version)
	case version > installed.Version:
		e.add(SeverityInfo, db, records, "", "version %d of loose foreign keys is installed, this is version %d: use a newer loosefk", version, installed.Version)
	}
	owners, err := e.parentOwners(ctx, db)
	if err != nil {
		return err
	}
	for _, f := range s.Functions() {
		found, err := functionIn(ctx, db, f.Signature(s))
		if err != nil {
			return err
		}
		if found.there || version == installed.Version || strings.HasPrefix(f.Name, installed.TrackFunction) {
			e.function(db, f, found, version == installed.Version, owners)
		}
	}
	return nil
}

func functionIn(ctx context.Context, d *loosefk.Database, signature string) (f installedFunction, err error) {
	err = in(d).Catalog().QueryRow(ctx, `
		SELECT p.oid IS NOT NULL, COALESCE(p.prosecdef, false), COALESCE('search_path=pg_catalog, pg_temp' = ANY (p.proconfig), false),
			COALESCE(p.prosrc, ''), COALESCE(pg_get_userbyid(p.proowner)::text, ''),
			COALESCE(has_table_privilege(p.proowner, $2, 'INSERT') AND has_sequence_privilege(p.proowner, $3, 'USAGE'), false),
			EXISTS (SELECT FROM aclexplode(COALESCE(p.proacl, acldefault('f', p.proowner))) a WHERE a.grantee = 0),
			ARRAY(SELECT pg_get_userbyid(a.grantee)::text FROM aclexplode(p.proacl) a WHERE a.grantee NOT IN (0, p.proowner) ORDER BY 1)
		FROM (SELECT 1) one
		LEFT JOIN pg_proc p ON p.oid = to_regprocedure($1)`, signature, in(d).Records(), in(d).Table(pg.RecordsTable+"_id_seq").Quoted()).
		Scan(&f.there, &f.definer, &f.pinned, &f.body, &f.owner, &f.allowed, &f.public, &f.grantees)
	return f, err
}

// function examines one SQL function: `f` is the function as Install creates it, `found`
// the function as it exists in the database. `current` says that the installed version is
// this program's version: only then the bodies are compared. `owners` are the owners of
// parent tables.
func (e *examination) function(db *loosefk.Database, f installed.Function, found installedFunction, current bool, owners []string) {
	s, records, install := installed.Schema(in(db).Schema()), in(db).Table(pg.RecordsTable), "loosefk install "+db.Name
	name := f.Signature(s)
	add := func(severity Severity, remedy, format string, args ...any) {
		e.add(severity, db, records, remedy, format, args...)
	}
	if !found.there {
		add(SeverityError, install, "the trigger function %s is missing", name)
		return
	}
	mighty := strings.HasPrefix(f.Options, installed.Definer)
	switch {
	case found.body != f.Body && current:
		add(SeverityError, install, "the function %s isn't as version %d installs it: somebody has replaced it", name, installed.Version)
	case mighty && !found.definer:
		add(SeverityError, fmt.Sprintf("ALTER FUNCTION %s SECURITY DEFINER", name),
			"the trigger function %s isn't SECURITY DEFINER: whoever deletes a parent would need rights on the table of deleted records", name)
	case !found.pinned && current:
		add(SeverityError, fmt.Sprintf("ALTER FUNCTION %s SET search_path = pg_catalog, pg_temp", name),
			"the function %s has no search_path of its own: whoever deletes a parent could have it run other code", name)
	}
	if f.Name == installed.TrackFunction || f.Name == installed.OverrideFunction || f.Name == installed.KeyChangeFunction {
		if !found.allowed {
			add(SeverityError, fmt.Sprintf("GRANT INSERT ON %s TO %s; GRANT USAGE ON SEQUENCE %s TO %[2]s",
				in(db).Records(), pg.Quote(found.owner), in(db).Table(pg.RecordsTable+"_id_seq").Quoted()),
				"%s, who owns the trigger function %s, may not insert deleted records: deletes from parents fail", found.owner, name)
		}
	}
	if found.public {
		add(SeverityError, fmt.Sprintf("REVOKE ALL ON FUNCTION %s FROM PUBLIC", name),
			"everybody may execute the function %s, and attach it to tables of their own", name)
	}
	for _, role := range found.grantees {
		if guard := f.Name == installed.GuardInsertFunction || f.Name == installed.GuardUpdateFunction; guard || mighty && !slices.Contains(owners, role) {
			add(SeverityWarning, fmt.Sprintf("REVOKE ALL ON FUNCTION %s FROM %s CASCADE", name, pg.Quote(role)),
				"%s, who owns no parent, may execute the function %s: it acts with the rights of %s", role, name, found.owner)
		}
	}
}

// parentOwners returns the owners of the parents in a database.
func (e *examination) parentOwners(ctx context.Context, db *loosefk.Database) (owners []string, err error) {
	var names []string
	for _, t := range e.named(db) {
		names = append(names, t.String())
	}
	err = in(db).Catalog().QueryRow(ctx, `
		SELECT ARRAY(SELECT DISTINCT pg_get_userbyid(c.relowner)::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
			WHERE n.nspname || '.' || c.relname = ANY ($1::text[]))`, names).Scan(&owners)
	return owners, err
}

// openTables reports rights of PUBLIC on the tables of loose foreign keys. It also reports
// triggers on the table of deleted records, because they run with the rights of the role
// that owns the trigger functions.
func (e *examination) openTables(ctx context.Context, db *loosefk.Database) error {
	const ours = `c.oid IN (to_regclass($1), to_regclass($2), to_regclass($3))
		OR c.oid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = to_regclass($1))`
	args := []any{in(db).Records(), in(db).Table(pg.DetachedTable).Quoted(), in(db).Table(pg.RecordsTable + "_id_seq").Quoted()}
	var open, triggers []string
	err := in(db).Catalog().QueryRow(ctx, `
		SELECT ARRAY(SELECT DISTINCT (CASE c.relkind WHEN 'S' THEN 'SEQUENCE ' ELSE '' END) || format('%I.%I', n.nspname, c.relname)
				FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace, aclexplode(c.relacl) a
				WHERE a.grantee = 0 AND a.privilege_type <> 'SELECT' AND (`+ours+`)),
			ARRAY(SELECT format('%I ON %I.%I', g.tgname, n.nspname, c.relname)
				FROM pg_trigger g JOIN pg_class c ON c.oid = g.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace
				WHERE NOT g.tgisinternal AND g.tgparentid = 0 AND (`+ours+`))`, args...).Scan(&open, &triggers)
	if err != nil {
		return err
	}
	for _, name := range open {
		e.add(SeverityError, db, in(db).Table(pg.RecordsTable), fmt.Sprintf("REVOKE ALL ON %s FROM PUBLIC", name), "everybody may write to %s, and so make the worker delete children of any parent", name)
	}
	for _, name := range triggers {
		e.add(SeverityWarning, db, in(db).Table(pg.RecordsTable), "DROP TRIGGER "+name, "there is a trigger %s: it runs with the rights of whoever owns the trigger functions", name)
	}
	return nil
}

// superuser reports a worker that is a superuser and cleans up tables of other owners: the
// triggers of these tables run with the superuser's rights.
func (e *examination) superuser(ctx context.Context, db *loosefk.Database) error {
	var names []string
	for _, r := range e.rs {
		if r.ChildDatabase == db {
			names = append(names, r.ChildTable.Quoted())
		}
	}
	var user, owner, table, schema *string
	err := in(db).Catalog().QueryRow(ctx, `
		SELECT current_user::text, f.*
		FROM (SELECT 1) one LEFT JOIN (
			SELECT o.rolname::text, c.relname::text, n.nspname::text
			FROM pg_class c JOIN pg_roles o ON o.oid = c.relowner AND NOT o.rolsuper JOIN pg_namespace n ON n.oid = c.relnamespace
			WHERE c.oid = ANY (SELECT to_regclass(unnest($1::text[]))) AND (SELECT rolsuper FROM pg_roles WHERE rolname = current_user)
			ORDER BY 2 LIMIT 1) f ON true`, names).
		Scan(&user, &owner, &table, &schema)
	if err == nil && table != nil {
		e.add(SeverityWarning, db, pg.Table{Schema: *schema, Name: *table}, "",
			"the worker is a superuser here, %s, and changes tables of others (%s of %s), whose triggers then run with all its rights: have it connect as a role that has only the rights it needs", *user, *table, *owner)
	}
	return err
}
