package generate

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/purser-registry/purser/loosefk"
	"github.com/purser-registry/purser/loosefk/internal/testdb"
)

// left prepares a conversion of which some steps were done by hand. The functions in `done`
// do these steps.
func left(t *testing.T, definitions string, done ...func(g *generated)) *generated {
	t.Helper()
	g := newGenerated(t, definitions)
	g.Tests = ""
	for _, step := range done {
		step(g)
	}
	return g
}

func withInstallation(t *testing.T) func(g *generated) {
	return func(g *generated) { must(t, loosefk.DefaultSchema.Install(t.Context(), g.pool)) }
}

func trackedTable(t *testing.T, table string) func(g *generated) {
	return func(g *generated) { must(t, loosefk.DefaultSchema.TrackRecordDeletions(t.Context(), g.pool, table)) }
}

func runs(t *testing.T, sql string) func(g *generated) {
	return func(g *generated) { exec(t, g.pool, sql) }
}

const (
	ordersByHand = "orders:\n  - {table: customers, column: customer_id, on_delete: async_delete}\n"
	dropOrders   = "ALTER TABLE orders DROP CONSTRAINT fk_orders_customers"
)

// finish calls Convert with the foreign key of orders and with the definitions that have no
// foreign key.
func (g *generated) finish(t *testing.T) *Plan {
	t.Helper()
	keys := g.load(t, "^orders$")
	var defs loosefk.Definitions
	for _, d := range g.Definitions {
		if !slices.ContainsFunc(keys, func(k ForeignKey) bool { return len(k.Definitions(g.Databases, loosefk.Definitions{d})) > 0 }) {
			defs = append(defs, d)
		}
	}
	p, err := g.Convert(t.Context(), keys, defs...)
	must(t, err)
	return p
}

// TestConvertWhatIsLeft: Convert must not repeat steps that were done by hand. After its
// plan was carried out, files and database must be as after a conversion by Convert alone.
func TestConvertWhatIsLeft(t *testing.T) {
	t.Parallel()
	const drop = "drop_fk_orders_customers_from_orders.sql"
	for _, tt := range []struct {
		name string
		g    *generated
		want []string
	}{
		{"defined", left(t, ordersByHand), []string{"install_loose_foreign_keys.sql", "track_deletions_from_customers.sql", drop}},
		{"defined and installed", left(t, ordersByHand, withInstallation(t)), []string{"track_deletions_from_customers.sql", drop}},
		{"all but the drop", left(t, ordersByHand, withInstallation(t), trackedTable(t, "customers")), []string{drop}},
		{"all but the definition", left(t, "", withInstallation(t), trackedTable(t, "customers")), []string{"loose.yml", drop}},
		{"all but the trigger", left(t, ordersByHand, withInstallation(t), runs(t, dropOrders)), []string{"track_deletions_from_customers.sql"}},
		{"installed by an older version", left(t, ordersByHand, withInstallation(t), runs(t, testdb.OlderVersion)), []string{upgradeName() + ".sql", "track_deletions_from_customers.sql", drop}},
		{"only the definition and the drop", left(t, ordersByHand, runs(t, dropOrders)), []string{"install_loose_foreign_keys.sql", "track_deletions_from_customers.sql"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := tt.g.finish(t)
			if got := base(paths(p)); !slices.Equal(got, tt.want) || len(p.Refused)+len(p.Skipped) > 0 {
				t.Fatalf("the plan is %q, want %q; refused %v, skipped %v", got, tt.want, p.Refused, p.Skipped)
			}
			if steps := strings.Join(p.Steps, "\n"); strings.Contains(steps, "run  ") || slices.Contains(tt.want, drop) != strings.Contains(steps, "only then") {
				t.Errorf("the steps are %q", p.Steps)
			}
			must(t, p.Write())
			_, err := tt.g.goose(t).Up(t.Context())
			must(t, err)
			exec(t, tt.g.pool, "INSERT INTO customers (id) VALUES (1); INSERT INTO orders (customer_id) VALUES (1), (1); DELETE FROM customers")
			if r := tt.g.work(t); r.Deletes != 2 {
				t.Errorf("the worker says %+v", r)
			}
			q := tt.g.finish(t)
			if len(q.Files) != 0 || len(q.Skipped) != 1 || !strings.Contains(q.Skipped[0].Reason, "its foreign key is gone already") {
				t.Errorf("a second plan is %q, skipped %v", paths(q), q.Skipped)
			}
		})
	}
	// Convert must not plan to drop a foreign key if a migration that hasn't run yet drops
	// it.
	g := left(t, ordersByHand, withInstallation(t), trackedTable(t, "customers"))
	must(t, g.finish(t).Write())
	if p := g.finish(t); len(p.Files) != 0 || len(p.Skipped) != 1 || !strings.Contains(p.Skipped[0].Reason, drop+" drops it: run that") {
		t.Errorf("with the migration there: %q, skipped %v", paths(p), p.Skipped)
	}
	// Convert must refuse a foreign key whose definition has conditions, since the foreign
	// key applies to all rows.
	must(t, os.WriteFile(g.File, []byte("orders:\n  - {table: customers, column: customer_id, on_delete: async_delete, conditions: [{column: id, value: 1}]}\n"), 0o600))
	must(t, os.RemoveAll(g.Migrations))
	if p := g.finish(t); len(p.Files) != 0 || len(p.Refused) != 1 || !strings.Contains(p.Refused[0].Reason, "its definition has conditions") {
		t.Errorf("with conditions: %q, refused %v", paths(p), p.Refused)
	}
}

// retreat calls Revert with all definitions and with the foreign keys that have no
// definition.
func (g *generated) retreat(t *testing.T) *Plan {
	t.Helper()
	keys := slices.DeleteFunc(g.load(t, "^orders$"), func(k ForeignKey) bool { return k.HasLooseForeignKey })
	p, err := g.Revert(t.Context(), g.Definitions, keys...)
	must(t, err)
	return p
}

func TestRevertWhatIsLeft(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		g    *generated
		want []string
	}{
		{"nothing done", left(t, ordersByHand, withInstallation(t), trackedTable(t, "customers"), runs(t, dropOrders)),
			[]string{"loose.yml", "restore_orders_customer_id_fkey_of_orders.sql", "untrack_deletions_from_customers.sql"}},
		{"the key is back", left(t, ordersByHand, withInstallation(t), trackedTable(t, "customers")), []string{"loose.yml", "untrack_deletions_from_customers.sql"}},
		{"the definition is removed", left(t, "", withInstallation(t), trackedTable(t, "customers")), []string{"untrack_deletions_from_customers.sql"}},
		{"all but the definition", left(t, ordersByHand, withInstallation(t)), []string{"loose.yml"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := tt.g.retreat(t)
			if got := base(paths(p)); !slices.Equal(got, tt.want) || len(p.Refused)+len(p.Skipped) > 0 {
				t.Fatalf("the plan is %q, want %q; refused %v, skipped %v", got, tt.want, p.Refused, p.Skipped)
			}
			must(t, p.Write())
			if len(tt.want) > 1 || tt.want[0] != "loose.yml" {
				_, err := tt.g.goose(t).Up(t.Context())
				must(t, err)
			}
			testdb.WantRows(t, tt.g.pool, "SELECT count(*) FROM pg_constraint WHERE contype = 'f' AND conrelid = 'orders'::regclass AND convalidated", int64(1))
			testdb.WantRows(t, tt.g.pool, "SELECT count(*) FROM pg_trigger WHERE tgrelid = 'customers'::regclass AND NOT tgisinternal", int64(0))
			q := tt.g.retreat(t)
			if len(q.Files) != 0 || len(q.Skipped) != 1 || !strings.Contains(q.Skipped[0].Reason, "it is a foreign key, and has no definition") {
				t.Errorf("a second plan is %q, skipped %v", paths(q), q.Skipped)
			}
		})
	}
	// Revert must keep the trigger of a parent that another definition names.
	g := left(t, "visits:\n  - {table: customers, column: customer_id, on_delete: async_nullify}\n", withInstallation(t), trackedTable(t, "customers"))
	g.load(t)
	keys := g.load(t, "^orders$")
	if p, err := g.Revert(t.Context(), nil, keys...); err != nil || len(p.Files) != 0 || len(p.Skipped) != 1 {
		t.Errorf("with another definition: %+v, %v", p, err)
	}
}
