package loosefk

import (
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/loosefk/internal/pg"
)

// TestKeys creates parents with keys of each type and of any name, in tables with and
// without partitions, and deletes some. The deletions must be recorded, a worker must clean
// up only the children of the deleted parents, and guards and audits must work.
func TestKeys(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, parent, child string // SQL of the columns; "$" in parent stands for the rest of the table's
		key                 string
		values              [3]string
	}{
		{"uuid", "CREATE TABLE p (k uuid PRIMARY KEY, n int)", "uuid", "k", [3]string{
			"00000000-0000-0000-0000-00000000000a", "00000000-0000-0000-0000-00000000000b", "00000000-0000-0000-0000-00000000000c"}},
		{"uuid called id", "CREATE TABLE p (id uuid PRIMARY KEY, n int)", "uuid", "id", [3]string{
			"00000000-0000-0000-0000-00000000000a", "00000000-0000-0000-0000-00000000000b", "00000000-0000-0000-0000-00000000000c"}},
		{"text", "CREATE TABLE p (\"the 'Key\" text PRIMARY KEY, n int)", "varchar(40)", "the 'Key", [3]string{"o'brien", `b"\ %s`, "ü,{c}"}},
		{"varchar", "CREATE TABLE p (k varchar(20) PRIMARY KEY, n int)", "text", "k", [3]string{"a", "B", ""}},
		{"integer of another name", "CREATE TABLE p (no int PRIMARY KEY, n int)", "bigint", "no", [3]string{"1", "2", "-3"}},
		{"columns called like variables", "CREATE TABLE p (id int PRIMARY KEY, n int, name text, key text, key_type text, parent int, given text)", "int", "id", [3]string{"1", "2", "3"}},
		{"partitioned", "CREATE TABLE p (k uuid, n int, PRIMARY KEY (k, n)) PARTITION BY LIST (n); CREATE TABLE p_1 PARTITION OF p FOR VALUES IN (1); CREATE TABLE p_2 PARTITION OF p FOR VALUES IN (2)",
			"uuid", "k", [3]string{
				"00000000-0000-0000-0000-00000000000a", "00000000-0000-0000-0000-00000000000b", "00000000-0000-0000-0000-00000000000c"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			pool := newPool(t, tt.parent, "CREATE TABLE c (id bigserial, ref "+tt.child+"); CREATE INDEX ON c (ref)")
			db := install(t, pool)
			track := DefaultSchema.TrackRecordDeletions
			if tt.name == "partitioned" {
				track = DefaultSchema.TrackRecordDeletionsOverrideTableName
			}
			must(t, track(t.Context(), pool, "p"))
			must(t, DefaultSchema.GuardInserts(t.Context(), pool, "c", "ref", "p"))
			w := newWorker(t, Options{Definitions: parse(t, "c: [{table: p, column: ref, on_delete: async_delete}]")}, db)
			key := pg.Quote(tt.key)
			for _, v := range tt.values {
				exec(t, pool, "INSERT INTO p ("+key+", n) VALUES ("+pg.Literal(v)+", 1)")
				exec(t, pool, "INSERT INTO c (ref) VALUES ("+pg.Literal(v)+"), ("+pg.Literal(v)+"), (NULL)")
			}
			lost := map[pg.Kind]string{"integer": "77", "uuid": "00000000-0000-0000-0000-0000000000ff", "text": "lost"}
			k, err := db.in().Key(t.Context(), pg.Table{Schema: "public", Name: "p"})
			must(t, err)
			insert := "INSERT INTO c (ref) VALUES (" + pg.Literal(lost[k.Kind]) + ")"
			if _, err := pool.Exec(t.Context(), insert); !pg.IsState(err, "23503") {
				t.Errorf("an orphan: %v", err)
			}
			if _, err := pool.Exec(t.Context(), "UPDATE c SET ref = "+pg.Literal(lost[k.Kind])+" WHERE id = 1"); !pg.IsState(err, "23503") {
				t.Errorf("a child that becomes an orphan: %v", err)
			}
			exec(t, pool, "DELETE FROM p WHERE "+key+" = "+pg.Literal(tt.values[0]))
			exec(t, pool, "DELETE FROM p WHERE "+key+" = "+pg.Literal(tt.values[1]))
			exec(t, pool, "INSERT INTO p ("+key+", n) VALUES ("+pg.Literal(tt.values[1])+", 1)") // the parent is inserted again
			if r := runOnce(t, w, "main"); r.Processed != 2 || r.Deletes != 2 {
				t.Errorf("the run says %+v", r)
			}
			exec(t, pool, "UPDATE p SET "+key+" = "+pg.Literal(lost[k.Kind])+", n = 1 WHERE "+key+" = "+pg.Literal(tt.values[2]))
			if r := runOnce(t, w, "main"); r.Processed != 1 || r.Deletes != 2 {
				t.Errorf("after a key has changed, the run says %+v", r)
			}
			wantRows(t, pool, "SELECT ref::text FROM c WHERE ref IS NOT NULL", tt.values[1], tt.values[1])
			must(t, DefaultSchema.UnguardInserts(t.Context(), pool, "c", "ref"))
			exec(t, pool, "DELETE FROM p WHERE "+key+" = "+pg.Literal(lost[k.Kind]))
			runOnce(t, w, "main")
			exec(t, pool, insert)
			found, err := Tools.Repair(t.Context(), w)
			must(t, err)
			if len(found) != 1 || !regexp.MustCompile(`^public\.c 0/0 [0-9]+/1 (\[\])?\[`+regexp.QuoteMeta(lost[k.Kind])+`\](\[\])? 1$`).MatchString(found[0]) {
				t.Errorf("the audit finds %+v", found)
			}
			if n, err := db.ExpediteKeys(t.Context(), "p", lost[k.Kind]); err != nil || n != 1 {
				t.Errorf("%d records were put first: %v", n, err)
			}
			if r, err := w.Drain(t.Context(), "p", nil); err != nil || r.Deletes != 1 {
				t.Errorf("draining says %+v, %v", r, err)
			}
			list, err := Tools.Examine(t.Context(), w)
			must(t, err)
			if len(list) > 0 {
				t.Errorf("doctor finds %+v", list)
			}
		})
	}
}

// The key of a parent can't be recorded, for example because it has two columns. Validate and
// TrackRecordDeletions must fail. Otherwise the trigger would make clients' deletes fail.
func TestKeysThatCantBeRecorded(t *testing.T) {
	t.Parallel()
	pool := newPool(t, `
		CREATE TABLE none (n text);
		CREATE TABLE composite (a int, b int, PRIMARY KEY (a, b));
		CREATE TABLE tenant (tenant_id int, id int, PRIMARY KEY (tenant_id, id));
		CREATE TABLE moment (id timestamptz PRIMARY KEY);
		CREATE TABLE amount (id numeric PRIMARY KEY);
		CREATE VIEW looks AS SELECT 1 AS id;
		CREATE TABLE "dot.ted" (id int PRIMARY KEY);
		CREATE TABLE fine (k uuid PRIMARY KEY);
		CREATE TABLE c (ref bigint); CREATE INDEX ON c (ref)`)
	must(t, DefaultSchema.Install(t.Context(), pool))
	for _, table := range []string{"none", "composite", "tenant", "moment", "amount", "looks"} {
		if err := DefaultSchema.TrackRecordDeletions(t.Context(), pool, table); err == nil || !strings.Contains(err.Error(), "public."+table) {
			t.Errorf("tracking %s: %v", table, err)
		}
		defs := parse(t, "c: [{table: "+table+", column: ref, on_delete: async_delete}]")
		if err := Validate(t.Context(), Databases{{Name: "main", Pool: pool}}, defs); err == nil {
			t.Errorf("%s is valid", table)
		}
	}
	if _, err := pool.Exec(t.Context(), `SELECT loose_foreign_keys_track('"dot.ted"', false)`, pgx.QueryExecModeSimpleProtocol); !pg.IsState(err, "42602") {
		t.Errorf("a name with a dot: %v", err)
	}
	defs := parse(t, "c: [{table: fine, column: ref, on_delete: async_delete}]")
	if err := Validate(t.Context(), Databases{{Name: "main", Pool: pool}}, defs); err == nil || !strings.Contains(err.Error(), "can't hold the key k of public.fine, which is uuid") {
		t.Errorf("a child of another type: %v", err)
	}
	must(t, DefaultSchema.TrackRecordDeletions(t.Context(), pool, "fine"))
	if err := DefaultSchema.GuardInserts(t.Context(), pool, "c", "ref", "fine"); err == nil {
		t.Error("a guard on a column of another type is taken")
	}
	wantRows(t, pool, "SELECT count(*)::int FROM pg_trigger WHERE NOT tgisinternal", 2)
}

// A deleted record contains a key of another type than the parent's key. The run must mark
// this record as failed, and process other records. If a trigger records another column than
// the parent's key, the run must return an error and keep the children.
func TestUnfitKeys(t *testing.T) {
	t.Parallel()
	pool := newPool(t, `CREATE TABLE p (k uuid PRIMARY KEY); CREATE TABLE c (ref uuid); CREATE INDEX ON c (ref)`)
	db := install(t, pool, "p")
	w := newWorker(t, Options{Batch: 2, Definitions: parse(t, "c: [{table: p, column: ref, on_delete: async_delete}]")}, db)
	exec(t, pool, `INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value, primary_key_text)
		VALUES ('public.p', 1, NULL), ('public.p', 0, 'nonsense'), ('public.p', 5, NULL), ('public.p', 0, NULL)`)
	exec(t, pool, `INSERT INTO p VALUES ('00000000-0000-0000-0000-00000000000a'); INSERT INTO c SELECT k FROM p; DELETE FROM p`)
	if r := runOnce(t, w, "main"); r.Processed != 1 || r.Deletes != 1 {
		t.Errorf("the run says %+v", r)
	}
	wantRows(t, pool, "SELECT count(*)::int FROM loose_foreign_keys_deleted_records WHERE status = 3", 4)
	exec(t, pool, "ALTER TABLE p ADD id uuid UNIQUE DEFAULT gen_random_uuid()")
	exec(t, pool, `INSERT INTO loose_foreign_keys_deleted_records (fully_qualified_table_name, primary_key_value, primary_key_text)
		VALUES ('public.p', 0, '00000000-0000-0000-0000-00000000000b')`)
	if _, err := w.RunOnce(t.Context(), "main"); err == nil || !strings.Contains(err.Error(), "records the column k, but its key is id") {
		t.Errorf("the run ends with %v", err)
	}
}
