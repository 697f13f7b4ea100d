package generate

import (
	"strings"
	"testing"

	"github.com/purser-registry/purser/loosefk"
)

const edited = `# Loose foreign keys of the shop.

# Orders are many.
orders:
  # the customer's
  - table: customers
    column: customer_id
    on_delete: async_delete
    conditions: [{column: state, value: [1, 2]}]
    # - table: shops

# Returns are few.
returns:
- table: orders
  column: order_id
  on_delete: :async_nullify
# goods
- {table: goods, column: good_id, on_delete: async_delete}

"on":   # a table of that name
    -   table: orders
        column: order_id
        on_delete: async_delete
`

func TestEditDefinitions(t *testing.T) {
	t.Parallel()
	define := func(child, parent, column string) loosefk.Definitions {
		return loosefk.Definitions{{Child: child, Parent: parent, Column: column, OnDelete: loosefk.AsyncDelete}}
	}
	customer := define("orders", "customers", "customer_id")
	customer[0].Conditions = parse(t, edited)[0].Conditions
	for _, tt := range []struct {
		name, text  string
		add, remove loosefk.Definitions
		old, new    string // the part of the text that changes, before and after
	}{
		{"another entry", edited, define("orders", "shops", "shop_id"), nil,
			"    # - table: shops\n", "    # - table: shops\n  - table: shops\n    column: shop_id\n    on_delete: async_delete\n"},
		{"a list at the margin", edited, define("returns", "shops", "shop_id"), nil,
			"good_id, on_delete: async_delete}\n", "good_id, on_delete: async_delete}\n- table: shops\n  column: shop_id\n  on_delete: async_delete\n"},
		{"a wide list", edited, define("on", "null", "yes"), nil,
			"        on_delete: async_delete\n", "        on_delete: async_delete\n    -   table: \"null\"\n        column: \"yes\"\n        on_delete: async_delete\n"},
		{"a new child", edited, define("parcels", "orders", "order_id"), nil,
			"        on_delete: async_delete\n", "        on_delete: async_delete\n\nparcels:\n  - table: orders\n    column: order_id\n    on_delete: async_delete\n"},
		{"a sorted file", "a:\n- {table: x, column: y, on_delete: async_delete}\n# c's\nc:\n- {table: x, column: y, on_delete: async_delete}\n", define("b", "x", "z"), nil,
			"# c's\n", "b:\n  - table: x\n    column: z\n    on_delete: async_delete\n# c's\n"},
		{"a sorted file, first", "# all\n\n# b's\nb:\n- {table: x, column: y, on_delete: async_delete}\n\nc:\n- {table: x, column: y, on_delete: async_delete}\n", define("a", "x", "z"), nil,
			"# b's\n", "a:\n  - table: x\n    column: z\n    on_delete: async_delete\n\n# b's\n"},
		{"an empty file", "", define("a", "x.y", "z"), nil, "", "a:\n  - table: x.y\n    column: z\n    on_delete: async_delete\n"},
		{"an empty mapping", "# none yet\n{}\n", define("a", "x", "z"), nil, "{}\n", "a:\n  - table: x\n    column: z\n    on_delete: async_delete\n"},
		{"comments only", "# none yet\n", define("a", "x", "z"), nil, "# none yet\n", "# none yet\na:\n  - table: x\n    column: z\n    on_delete: async_delete\n"},
		{"Windows", "a:\r\n- {table: x, column: y, on_delete: async_delete}\r\n", define("a", "x", "z"), nil,
			"async_delete}\r\n", "async_delete}\r\n- table: x\r\n  column: z\r\n  on_delete: async_delete\r\n"},
		{"no last newline", "a:\n- {table: x, column: y, on_delete: async_delete}", define("a", "x", "z"), nil,
			"async_delete}", "async_delete}\n- table: x\n  column: z\n  on_delete: async_delete\n"},
		{"the end of a document", "---\na:\n- {table: x, column: y, on_delete: async_delete}\n...\nrest\n", define("b", "x", "z"), nil,
			"...\n", "b:\n  - table: x\n    column: z\n    on_delete: async_delete\n...\n"},
		{"without one of two", edited, nil, define("returns", "goods", "good_id"),
			"# goods\n- {table: goods, column: good_id, on_delete: async_delete}\n", ""},
		{"without the first of two", edited, nil, define("returns", "orders", "order_id"),
			"- table: orders\n  column: order_id\n  on_delete: :async_nullify\n", ""},
		{"without the last of a child", edited, nil, customer, edited[strings.Index(edited, "# Orders"):strings.Index(edited, "# Returns")], ""},
		{"without the last child", edited, nil, define("on", "orders", "order_id"), edited[strings.Index(edited, "\n\"on\""):], ""},
		{"without anything", "# all\na:\n- {table: x, column: y, on_delete: async_delete}\n", nil, define("a", "x", "y"),
			"a:\n- {table: x, column: y, on_delete: async_delete}\n", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, after, err := editDefinitions("loose.yml", []byte(tt.text), tt.add, tt.remove)
			must(t, err)
			if want := strings.Replace(tt.text, tt.old, tt.new, 1); string(got) != want {
				t.Errorf("the result is\n%s\nwant\n%s", got, want)
			}
			if n := len(parse(t, tt.text)) + len(tt.add) - len(tt.remove); len(after) != n {
				t.Errorf("the result holds %d definitions, want %d", len(after), n)
			}
		})
	}
}

// If a file can't be edited safely, editDefinitions must fail with an error that says what
// to do by hand.
func TestEditDefinitionsRefuses(t *testing.T) {
	t.Parallel()
	d := loosefk.Definition{Child: "a", Parent: "x", Column: "z", OnDelete: loosefk.AsyncDelete}
	for _, tt := range []struct {
		name, text  string
		add, remove loosefk.Definitions
		want        string
	}{
		{"a list in brackets", "a: [{table: x, column: y, on_delete: async_delete}]\n", loosefk.Definitions{d}, nil, "column: z"},
		{"braces", "{a: [{table: x, column: y, on_delete: async_delete}]}\n", loosefk.Definitions{{Child: "b", Parent: "x", Column: "z", OnDelete: loosefk.AsyncDelete}}, nil, "in braces"},
		{"an alias", "b: &l\n- {table: x, column: y, on_delete: async_delete}\na: *l\n", loosefk.Definitions{d}, nil, "not a list with a line for each dash"},
		{"what others refer to", "b: &l\n- {table: x, column: y, on_delete: async_delete}\na: *l\n", nil, loosefk.Definitions{{Child: "b", Parent: "x", Column: "y"}}, "by hand"},
		{"what isn't there", "a:\n- {table: x, column: y, on_delete: async_delete}\n", nil, loosefk.Definitions{d}, "no definition"},
		{"one that is there", "a:\n- {table: x, column: z, on_delete: async_nullify}\n", loosefk.Definitions{d}, nil, "already"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, _, err := editDefinitions("loose.yml", []byte(tt.text), tt.add, tt.remove)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("the error is %v, want one with %q", err, tt.want)
			}
		})
	}
}

func TestFilter(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		patterns []string
		want     bool
	}{
		{nil, true},
		{[]string{"pipe"}, true},
		{[]string{"^pipe", "projects$", "_id"}, true},
		{[]string{"^pipe", "users"}, false},
		{[]string{"^pipelines$"}, false},
	} {
		f, err := ParseFilter(tt.patterns...)
		must(t, err)
		if got := f.Match("ci_pipelines", "pipelined_projects", "project_id"); got != tt.want {
			t.Errorf("%q: %v, want %v", tt.patterns, got, tt.want)
		}
	}
	if _, err := ParseFilter("a", "("); err == nil || !strings.Contains(err.Error(), `"("`) {
		t.Errorf("a wrong expression: %v", err)
	}
}
