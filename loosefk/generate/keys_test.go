package generate

import (
	"slices"
	"strings"
	"testing"

	"github.com/purser-registry/purser/loosefk/internal/pg"
	"github.com/purser-registry/purser/loosefk/internal/testdb"
)

// Parents have keys of each type and of any name. Convert must turn foreign keys to these
// parents into loose ones, and Revert must restore the foreign keys as they were.
func TestConvertKeys(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, column, typ, childType string
		values                       [3]string
		rows                         string // a key that no parent has
	}{
		{"smallint", "id", "smallint", "smallint", [3]string{"1", "2", "3"}, "9"},
		{"integer", "Number of", "integer", "bigint", [3]string{"1", "-2", "3"}, "9"},
		{"bigint", "nr", "bigint", "bigint", [3]string{"1", "9223372036854775807", "3"}, "9"},
		{"uuid", "id", "uuid", "uuid", [3]string{"00000000-0000-0000-0000-00000000000a", "A0000000-0000-0000-0000-00000000000b", "00000000-0000-0000-0000-00000000000c"}, "00000000-0000-0000-0000-0000000000ff"},
		{"text", "slug", "text", "text", [3]string{"a", "b'\"\\", ""}, "z"},
		{"varchar", "id", "varchar(20)", "text", [3]string{"a", "it's", "  "}, "z"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			key := pg.Quote(tt.column)
			g := newGenerated(t, "")
			g.Tests = ""
			exec(t, g.pool, "CREATE TABLE p ("+key+" "+tt.typ+" PRIMARY KEY);"+
				"CREATE TABLE c (n serial PRIMARY KEY, ref "+tt.childType+" CONSTRAINT fk_p REFERENCES p ON DELETE CASCADE); CREATE INDEX ON c (ref)")
			for _, v := range tt.values {
				exec(t, g.pool, "INSERT INTO p VALUES ("+pg.Literal(v)+"); INSERT INTO c (ref) VALUES ("+pg.Literal(v)+"), ("+pg.Literal(v)+")")
			}
			was := testdb.Query[string](t, g.pool, "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = 'fk_p'")
			p := g.convert(t, "^c$", "^p$")
			if len(p.Keys) != 1 || p.Keys[0].ToColumn != tt.column || len(p.Refused) > 0 {
				t.Fatalf("the plan has %v, refused %v", p.Keys, p.Refused)
			}
			must(t, p.Write())
			run := g.goose(t)
			_, err := run.Up(t.Context())
			must(t, err)
			exec(t, g.pool, "DELETE FROM p WHERE "+key+" = "+pg.Literal(tt.values[1]))
			testdb.WantRows(t, g.pool, "SELECT count(*)::int FROM c", 6)
			if q := g.revert(t, "^c$"); len(q.Refused) != 1 || !strings.Contains(q.Refused[0].Reason, "2 rows of c refer to rows of p that are gone, and 1 deletions") {
				t.Errorf("with orphans the way back is %+v", q)
			}
			if r := g.work(t); r.Deletes != 2 {
				t.Errorf("the worker says %+v", r)
			}
			// Run the down part of the last migration, and then its up part again.
			exec(t, g.pool, "INSERT INTO c (ref) VALUES ("+pg.Literal(tt.rows)+")")
			_, err = run.Down(t.Context())
			must(t, err)
			testdb.WantRows(t, g.pool, "SELECT count(*)::int FROM c", 4)
			testdb.WantRows(t, g.pool, "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = 'fk_p' AND convalidated", was...)
			_, err = run.Up(t.Context())
			must(t, err)
			q := g.revert(t, "^c$")
			if got := base(paths(q)); !slices.Equal(got, []string{"loose.yml", "restore_fk_p_of_c.sql", "untrack_deletions_from_p.sql"}) {
				t.Fatalf("the way back is %q, refused %v", got, q.Refused)
			}
			must(t, q.Write())
			_, err = g.goose(t).Up(t.Context())
			must(t, err)
			testdb.WantRows(t, g.pool, "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = 'fk_p' AND convalidated", was...)
		})
	}
}

// If no migration in the directory contains the foreign key, Revert must make it from its
// definition; it must refer to the parent's key column.
func TestRevertKeys(t *testing.T) {
	t.Parallel()
	g := newGenerated(t, "c:\n  - {table: p, column: ref, on_delete: async_nullify}\n")
	exec(t, g.pool, `CREATE TABLE p ("Key" uuid PRIMARY KEY); CREATE TABLE c (ref uuid); CREATE INDEX ON c (ref)`)
	must(t, g.revert(t, "^c$").Write())
	_, err := g.goose(t).Up(t.Context())
	must(t, err)
	testdb.WantRows(t, g.pool, "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = 'c_ref_fkey' AND convalidated",
		`FOREIGN KEY (ref) REFERENCES p("Key") ON DELETE SET NULL`)
}

// Convert must refuse a foreign key to another column than the parent's key, with a reason
// that names the key.
func TestConvertOtherColumn(t *testing.T) {
	t.Parallel()
	g := newGenerated(t, "")
	exec(t, g.pool, `CREATE TABLE p (id bigint PRIMARY KEY, slug text UNIQUE); CREATE TABLE amounts (a numeric PRIMARY KEY);
		CREATE TABLE c (slug text REFERENCES p (slug) ON DELETE CASCADE, a numeric REFERENCES amounts ON DELETE CASCADE);
		CREATE INDEX ON c (slug); CREATE INDEX ON c (a)`)
	p := g.convert(t, "^c$")
	if len(p.Refused) != 2 || !strings.Contains(p.Refused[0].Reason+p.Refused[1].Reason, "it refers to the parent's column slug, and deletions from the parent are recorded by its key id") ||
		!strings.Contains(p.Refused[0].Reason+p.Refused[1].Reason, "its parent has no key that deleted records can hold") {
		t.Errorf("refused %v", p.Refused)
	}
}
