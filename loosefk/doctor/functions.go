package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// installedFunction is what a database has of a function of ours.
type installedFunction struct {
	there, definer, pinned bool
	body, owner            string
	allowed                bool // its owner may insert deleted records
	public                 bool // everybody may execute it
	grantees               []string
}

// version is the version of what is installed.
func (d *Database) version(ctx context.Context) (version int, err error) {
	err = d.catalog().QueryRow(ctx, "SELECT COALESCE((SELECT substring(prosrc FROM '[0-9]+')::int FROM pg_proc WHERE oid = to_regprocedure($1)), 1)",
		d.function(versionFunction)).Scan(&version)
	return version, err
}

// functions examines the functions that Install makes: their version, whether
// they are as it makes them, and who may execute them.
func (e *examination) functions(ctx context.Context, db *Database) error {
	s, records := Schema(db.schema()), db.table(RecordsTable)
	version, err := db.version(ctx)
	if err != nil {
		return err
	}
	install := "loosefk install " + db.Name
	switch {
	case version < SchemaVersion:
		e.add(SeverityError, db, records, install, "version %d of loose foreign keys is installed, this is version %d: what is installed can be misused by everybody who may connect", version, SchemaVersion)
	case version > SchemaVersion:
		e.add(SeverityInfo, db, records, "", "version %d of loose foreign keys is installed, this is version %d: use a newer loosefk", version, SchemaVersion)
	}
	owners, err := e.parentOwners(ctx, db)
	if err != nil {
		return err
	}
	for _, f := range s.functions() {
		found, err := db.installedFunction(ctx, f.signature(s))
		if err != nil {
			return err
		}
		if found.there || version == SchemaVersion || strings.HasPrefix(f.name, trackFunction) {
			e.function(db, f, found, version == SchemaVersion, owners)
		}
	}
	return nil
}

func (d *Database) installedFunction(ctx context.Context, signature string) (f installedFunction, err error) {
	err = d.catalog().QueryRow(ctx, `
		SELECT p.oid IS NOT NULL, COALESCE(p.prosecdef, false), COALESCE('search_path=pg_catalog, pg_temp' = ANY (p.proconfig), false),
			COALESCE(p.prosrc, ''), COALESCE(pg_get_userbyid(p.proowner)::text, ''),
			COALESCE(has_table_privilege(p.proowner, $2, 'INSERT') AND has_sequence_privilege(p.proowner, $3, 'USAGE'), false),
			EXISTS (SELECT FROM aclexplode(COALESCE(p.proacl, acldefault('f', p.proowner))) a WHERE a.grantee = 0),
			ARRAY(SELECT pg_get_userbyid(a.grantee)::text FROM aclexplode(p.proacl) a WHERE a.grantee NOT IN (0, p.proowner) ORDER BY 1)
		FROM (SELECT 1) one
		LEFT JOIN pg_proc p ON p.oid = to_regprocedure($1)`, signature, d.records(), d.table(RecordsTable+"_id_seq").quoted()).
		Scan(&f.there, &f.definer, &f.pinned, &f.body, &f.owner, &f.allowed, &f.public, &f.grantees)
	return f, err
}

// function examines one function. Whether it is as this version makes it is only
// known if the database has this version.
func (e *examination) function(db *Database, f function, found installedFunction, current bool, owners []string) {
	s, records, install := Schema(db.schema()), db.table(RecordsTable), "loosefk install "+db.Name
	name := f.signature(s)
	add := func(severity Severity, remedy, format string, args ...any) {
		e.add(severity, db, records, remedy, format, args...)
	}
	if !found.there {
		add(SeverityError, install, "the trigger function %s is missing", name)
		return
	}
	mighty := strings.HasPrefix(f.options, definer)
	switch {
	case found.body != f.body && current:
		add(SeverityError, install, "the function %s isn't as version %d installs it: somebody or an older version has replaced it", name, SchemaVersion)
	case mighty && !found.definer:
		add(SeverityError, fmt.Sprintf("ALTER FUNCTION %s SECURITY DEFINER", name),
			"the trigger function %s isn't SECURITY DEFINER: whoever deletes a parent would need rights on the table of deleted records", name)
	case !found.pinned && current:
		add(SeverityError, fmt.Sprintf("ALTER FUNCTION %s SET search_path = pg_catalog, pg_temp", name),
			"the function %s has no search_path of its own: whoever deletes a parent could have it run other code", name)
	}
	if f.name == trackFunction || f.name == overrideFunction || f.name == keyChangeFunction {
		if !found.allowed {
			add(SeverityError, fmt.Sprintf("GRANT INSERT ON %s TO %s; GRANT USAGE ON SEQUENCE %s TO %[2]s",
				db.records(), quote(found.owner), db.table(RecordsTable+"_id_seq").quoted()),
				"%s, who owns the trigger function %s, may not insert deleted records: deletes from parents fail", found.owner, name)
		}
	}
	if found.public {
		add(SeverityError, fmt.Sprintf("REVOKE ALL ON FUNCTION %s FROM PUBLIC", name),
			"everybody may execute the function %s, and attach it to tables of their own", name)
	}
	for _, role := range found.grantees {
		if guard := f.name == guardInsertFunc || f.name == guardUpdateFunc; guard || mighty && !slices.Contains(owners, role) {
			add(SeverityWarning, fmt.Sprintf("REVOKE ALL ON FUNCTION %s FROM %s CASCADE", name, quote(role)),
				"%s, who owns no parent, may execute the function %s: it acts with the rights of %s", role, name, found.owner)
		}
	}
}

// parentOwners are the owners of the parents in a database.
func (e *examination) parentOwners(ctx context.Context, db *Database) (owners []string, err error) {
	var names []string
	for _, t := range e.named(db) {
		names = append(names, t.String())
	}
	err = db.catalog().QueryRow(ctx, `
		SELECT ARRAY(SELECT DISTINCT pg_get_userbyid(c.relowner)::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
			WHERE n.nspname || '.' || c.relname = ANY ($1::text[]))`, names).Scan(&owners)
	return owners, err
}

// openTables finds rights of everybody on the tables, and triggers on that of
// deleted records, which run with the rights of whoever owns the functions.
func (e *examination) openTables(ctx context.Context, db *Database) error {
	const ours = `c.oid IN (to_regclass($1), to_regclass($2), to_regclass($3))
		OR c.oid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = to_regclass($1))`
	args := []any{db.records(), db.table(DetachedTable).quoted(), db.table(RecordsTable + "_id_seq").quoted()}
	var open, triggers []string
	err := db.catalog().QueryRow(ctx, `
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
		e.add(SeverityError, db, db.table(RecordsTable), fmt.Sprintf("REVOKE ALL ON %s FROM PUBLIC", name), "everybody may write to %s, and so have children of any parent deleted", name)
	}
	for _, name := range triggers {
		e.add(SeverityWarning, db, db.table(RecordsTable), "DROP TRIGGER "+name, "there is a trigger %s: it runs with the rights of whoever owns the trigger functions", name)
	}
	return nil
}

// superuser tells that a superuser cleans up tables of somebody else's, whose
// triggers run with his rights.
func (e *examination) superuser(ctx context.Context, db *Database) error {
	var names []string
	for _, r := range e.rs {
		if r.childDB == db {
			names = append(names, r.child.quoted())
		}
	}
	var user, owner, table, schema *string
	err := db.catalog().QueryRow(ctx, `
		SELECT current_user::text, f.*
		FROM (SELECT 1) one LEFT JOIN (
			SELECT o.rolname::text, c.relname::text, n.nspname::text
			FROM pg_class c JOIN pg_roles o ON o.oid = c.relowner AND NOT o.rolsuper JOIN pg_namespace n ON n.oid = c.relnamespace
			WHERE c.oid = ANY (SELECT to_regclass(unnest($1::text[]))) AND (SELECT rolsuper FROM pg_roles WHERE rolname = current_user)
			ORDER BY 2 LIMIT 1) f ON true`, names).
		Scan(&user, &owner, &table, &schema)
	if err == nil && table != nil {
		e.add(SeverityWarning, db, tableName{*schema, *table}, "",
			"the worker is a superuser here, %s, and changes tables of others (%s of %s), whose triggers then run with all its rights: have it connect as a role that has only the rights it needs", *user, *table, *owner)
	}
	return err
}
