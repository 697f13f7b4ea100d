package generate

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/purser-registry/purser/loosefk"
)

// shop is SQL that creates tables with all kinds of foreign keys.
const shop = `
	CREATE SCHEMA billing;
	CREATE TABLE customers (id bigint PRIMARY KEY, number text UNIQUE, region int, UNIQUE (region, id));
	CREATE TABLE orders (id bigserial PRIMARY KEY, customer_id bigint NOT NULL
		CONSTRAINT fk_orders_customers REFERENCES customers ON UPDATE CASCADE ON DELETE CASCADE DEFERRABLE);
	CREATE INDEX ON orders (customer_id);
	CREATE TABLE visits (id bigserial PRIMARY KEY, customer_id bigint REFERENCES customers ON DELETE SET NULL);
	CREATE INDEX ON visits (customer_id) WHERE customer_id IS NOT NULL;
	CREATE TABLE billing.invoices (id bigserial PRIMARY KEY, customer_id bigint REFERENCES customers ON DELETE RESTRICT);
	CREATE INDEX ON billing.invoices (customer_id);
	CREATE TABLE notes (id bigserial PRIMARY KEY, customer_id bigint REFERENCES customers);
	CREATE INDEX ON notes (customer_id);
	CREATE TABLE letters (id bigserial PRIMARY KEY, customer_id bigint REFERENCES customers ON DELETE CASCADE);
	CREATE TABLE regions (id bigserial PRIMARY KEY, region int, customer_id bigint,
		FOREIGN KEY (region, customer_id) REFERENCES customers (region, id) ON DELETE CASCADE);
	CREATE TABLE cards (id bigserial PRIMARY KEY, customer text REFERENCES customers (number) ON DELETE CASCADE);
	CREATE INDEX ON cards (customer);
	CREATE TABLE flags (id bigserial PRIMARY KEY, customer_id bigint NOT NULL REFERENCES customers ON DELETE SET NULL);
	CREATE INDEX ON flags (customer_id);
	CREATE TABLE folders (id bigint PRIMARY KEY, folder_id bigint REFERENCES folders ON DELETE CASCADE);
	CREATE INDEX ON folders (folder_id);
	CREATE TABLE stores (id bigint PRIMARY KEY) PARTITION BY HASH (id);
	CREATE TABLE stores_0 PARTITION OF stores FOR VALUES WITH (MODULUS 2, REMAINDER 0);
	CREATE TABLE stores_1 PARTITION OF stores FOR VALUES WITH (MODULUS 2, REMAINDER 1);
	CREATE TABLE shelves (id bigserial PRIMARY KEY, store_id bigint REFERENCES stores ON DELETE CASCADE) PARTITION BY HASH (id);
	CREATE TABLE shelves_0 PARTITION OF shelves FOR VALUES WITH (MODULUS 1, REMAINDER 0);
	CREATE INDEX ON shelves (store_id)`

const shopDefinitions = `# The shop's.

letters:
  - table: customers
    column: customer_id
    on_delete: async_delete
`

func TestForeignKeys(t *testing.T) {
	t.Parallel()
	pool := newPool(t, shop)
	dbs := loosefk.Databases{{Name: "main", Pool: pool}}
	keys, err := ForeignKeys(t.Context(), dbs, parse(t, shopDefinitions))
	must(t, err)
	var got []string
	for _, k := range keys {
		got = append(got, fmt.Sprintf("%s %v %s", k, k.HasLooseForeignKey, k.NotConvertible))
	}
	want := []string{
		"billing.invoices.customer_id → customers (restrict) false ",
		"cards.customer → customers (cascade) false it refers to the parent's column number, and deletions from the parent are recorded by its key id",
		"flags.customer_id → customers (nullify) false ",
		"folders.folder_id → folders (cascade) false ",
		"letters.customer_id → customers (cascade) true ",
		"notes.customer_id → customers (no action) false ",
		"orders.customer_id → customers (cascade) false ",
		"regions.region, customer_id → customers (cascade) false it has 2 columns: a loose foreign key has one, which holds the parent's key",
		"shelves.store_id → stores (cascade) false ",
		"visits.customer_id → customers (nullify) false ",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the keys are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if k := keys[6]; k.Constraint != "fk_orders_customers" || k.Database != "main" ||
		k.Clause != "FOREIGN KEY (customer_id) REFERENCES public.customers(id) ON UPDATE CASCADE ON DELETE CASCADE DEFERRABLE" {
		t.Errorf("a key is %+v", k)
	}
}

// Two elements of Databases lead to one database, because the database is to be split. Each
// of its foreign keys must be listed once, and keys between tables of different elements
// must count as crossing databases.
func TestForeignKeysThatCross(t *testing.T) {
	t.Parallel()
	pool := newPool(t, shop)
	dbs := loosefk.Databases{{Name: "main", Pool: pool}, {Name: "sales", Pool: pool, Tables: []string{"orders", "vis*"}},
		{Name: "billing", Pool: pool, Schema: "billing", Tables: []string{"invoices"}}}
	keys, err := ForeignKeys(t.Context(), dbs, nil)
	must(t, err)
	name := filepath.Join(t.TempDir(), "map.yml")
	must(t, os.WriteFile(name, []byte("sales: [orders]\nbilling: ['billing.*', invoices]\n"), 0o600))
	m, err := loosefk.LoadMap(name)
	must(t, err)
	var cross, byMap []string
	for _, k := range keys {
		if k.Crosses(dbs) {
			cross = append(cross, k.Database+" "+k.From)
		}
		if k.Crosses(m) {
			byMap = append(byMap, k.From)
		}
	}
	// k.From and k.To contain a table's schema unless it is the schema of the Database that
	// lists k: "invoices" is listed without schema by the Database with the schema billing.
	if len(keys) != 10 || !slices.Equal(cross, []string{"billing invoices", "main orders", "main visits"}) {
		t.Errorf("of %d keys these cross: %q", len(keys), cross)
	}
	if !slices.Equal(byMap, []string{"invoices", "orders"}) {
		t.Errorf("by the map these cross: %q", byMap)
	}
	must(t, os.WriteFile(name, []byte("sales: orders\nbilling: ['[']\n"), 0o600))
	if _, err := loosefk.LoadMap(name); err == nil || !strings.Contains(err.Error(), ":1: database sales: want a list") ||
		!strings.Contains(err.Error(), `:2: database billing: table pattern "["`) {
		t.Errorf("a wrong map: %v", err)
	}
}
