package loosefk

import (
	"fmt"
	"strings"
	"testing"
)

// An attacker may create objects in a schema of the worker's search path, and creates
// operators and functions there that fit the worker's arguments better than PostgreSQL's
// own. None of them may run with the rights of the worker, doctor, audit, validate or
// convert.
func TestPlantedOperators(t *testing.T) {
	t.Parallel()
	pool := newPool(t, `
		CREATE TYPE mood AS ENUM ('good', 'bad');
		CREATE TABLE parents (id varchar(20) PRIMARY KEY);
		CREATE TABLE children (n bigserial PRIMARY KEY, ref varchar(20), kind varchar(20), mood mood, state varchar(20));
		CREATE INDEX ON children (ref, state);
		CREATE TABLE others (n bigserial PRIMARY KEY, ref varchar(20) CONSTRAINT fk_others REFERENCES parents ON DELETE CASCADE);
		CREATE INDEX ON others (ref)`)
	db := install(t, pool, "parents")
	evil, own := newRole(t, pool, "planter", "GRANT CREATE, USAGE ON SCHEMA public TO $role")
	exec(t, own, `CREATE TEMP TABLE mine (x int);
		CREATE FUNCTION public.caught(what text) RETURNS boolean LANGUAGE plpgsql AS $$
		BEGIN
			IF current_user <> '`+evil+`' THEN RAISE EXCEPTION 'PLANTED: % runs as %', what, current_user; END IF;
			RETURN true;
		END $$`)
	types := []string{"varchar", "text", "name", "oid", "regclass", "regprocedure", "regnamespace", "regtype", "int2", "int4", "int8", `"char"`, "public.mood", "tid"}
	n := 0
	for _, left := range types {
		for _, right := range types {
			for _, op := range []string{"=", "<>", "||", ">", "<"} {
				n++
				result := "boolean"
				if op == "||" {
					result = "text"
				}
				exec(t, own, fmt.Sprintf(`CREATE FUNCTION public.op_%[1]d(%[2]s, %[3]s) RETURNS %[4]s LANGUAGE sql AS 'SELECT public.caught(''%[5]s'')::%[4]s';
					CREATE OPERATOR public.%[6]s (LEFTARG = %[2]s, RIGHTARG = %[3]s, FUNCTION = public.op_%[1]d)`,
					n, left, right, result, strings.ReplaceAll(left+" "+op+" "+right, "'", ""), op))
			}
		}
	}
	for _, f := range []string{"starts_with(name, text)", "quote_ident(name)", "format(text, name)", "format(text, text)", "min(varchar)", "left(name, int4)",
		"concat(text)", "pg_get_expr(pg_node_tree, regclass)", "to_regclass(varchar)", "char_length(name)", "length(name)", "lower(name)", "replace(name, text, text)"} {
		exec(t, own, "CREATE FUNCTION public."+f+" RETURNS text LANGUAGE sql AS 'SELECT public.caught(''"+f+"'')::text'")
	}
	exec(t, own, "CREATE FUNCTION public.starts_with_any(text, text) RETURNS text LANGUAGE sql AS 'SELECT public.caught(''count'')::text';"+
		"CREATE FUNCTION public.hashtextextended(text, int4) RETURNS int8 LANGUAGE sql AS 'SELECT public.caught(''hashtextextended'')::int::int8';"+
		"CREATE FUNCTION public.unnest(text[]) RETURNS SETOF text LANGUAGE sql AS 'SELECT public.caught(''unnest'')::text';"+
		"CREATE AGGREGATE public.count(text) (SFUNC = public.starts_with_any, STYPE = text)")
	definitions := `children:
  - {table: parents, column: ref, on_delete: update_column_to, target_column: state, target_value: x,
     conditions: [{column: kind, value: [a, null]}, {column: mood, value: good}]}
`
	defs := parse(t, definitions)
	fill := "INSERT INTO parents VALUES ('a'), ('b'), ('c'); INSERT INTO children (ref, kind, mood) SELECT p.id, 'a', 'good' FROM parents p"
	exec(t, pool, "SET search_path = pg_catalog; SET search_path = public; "+fill)
	dbs := Databases{db}
	w, err := New(Options{Databases: dbs, Definitions: defs})
	must(t, err)
	for _, step := range []struct {
		name string
		run  func() error
	}{
		{"validate", func() error { return Validate(t.Context(), dbs, defs) }},
		{"a delete", func() error {
			_, err := pool.Exec(t.Context(), `DELETE FROM parents WHERE id OPERATOR(pg_catalog.<>) 'c'`)
			return err
		}},
		{"run", func() error {
			r, err := w.RunOnce(t.Context(), "main")
			if err == nil && r.Updates != 2 {
				err = fmt.Errorf("%+v", r)
			}
			return err
		}},
		{"drain", func() error { _, err := w.Drain(t.Context(), "parents", nil); return err }},
		{"doctor", func() error { _, err := Tools.Examine(t.Context(), w); return err }},
		{"audit", func() error { _, err := Tools.Repair(t.Context(), w); return err }},
		{"expedite", func() error { _, err := db.ExpediteKeys(t.Context(), "parents", "a"); return err }},
		{"status", func() error { _, err := db.Pending(t.Context()); return err }},
		{"keys", func() error { return Tools.ForeignKeys(t.Context(), dbs, defs) }},
		{"rotation", func() error {
			_, err := db.rotate(t.Context(), rotationOptions{1, 1, quick.lockWait, 3})
			return err
		}},
		{"repair", func() error { _, err := db.RepairDefault(t.Context()); return err }},
		{"convert and revert", func() error { return Tools.ConvertAndRevert(t, dbs) }},
		{"install", func() error { return DefaultSchema.Install(t.Context(), pool) }},
		{"track", func() error { return DefaultSchema.TrackRecordDeletions(t.Context(), pool, "parents") }},
		{"guard", func() error { return DefaultSchema.GuardInserts(t.Context(), pool, "children", "ref", "parents") }},
		{"unguard", func() error { return DefaultSchema.UnguardInserts(t.Context(), pool, "children", "ref") }},
		{"untrack", func() error { return DefaultSchema.UntrackRecordDeletions(t.Context(), pool, "parents") }},
		{"remove", func() error { _, err := DefaultSchema.RemoveDeletedRecords(t.Context(), pool, "parents"); return err }},
	} {
		if err := step.run(); err != nil {
			t.Errorf("%s: %v", step.name, err)
		}
	}
}

// Install and similar functions change the search path while they run. If they run in a
// transaction of the caller, each must restore the caller's search path at its end.
func TestSearchPathComesBack(t *testing.T) {
	t.Parallel()
	pool := newPool(t, "CREATE TABLE parents (id bigint PRIMARY KEY); CREATE TABLE children (ref bigint)")
	tx, err := pool.Begin(t.Context())
	must(t, err)
	defer tx.Rollback(t.Context()) //nolint:errcheck // the test changes nothing
	exec(t, tx, "SET LOCAL search_path = app, public")
	for _, step := range []func() error{
		func() error { return DefaultSchema.Install(t.Context(), tx) },
		func() error { return DefaultSchema.Install(t.Context(), tx) },
		func() error { return DefaultSchema.TrackRecordDeletions(t.Context(), tx, "parents") },
		func() error { return DefaultSchema.GuardInserts(t.Context(), tx, "children", "ref", "parents") },
		func() error { return DefaultSchema.UnguardInserts(t.Context(), tx, "children", "ref") },
		func() error { return DefaultSchema.UntrackRecordDeletions(t.Context(), tx, "parents") },
	} {
		must(t, step())
		wantRows(t, tx, "SELECT current_setting('search_path')", "app, public")
	}
}
