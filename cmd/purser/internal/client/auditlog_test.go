package client

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/server/servertest"
)

// TestAuditListCSV: "audit list -o csv" has the rows of "audit export --format csv", as many as --limit says, and no
// export becomes an entry.
func TestAuditListCSV(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	o.login("root")
	root := o.r.With(append(servertest.As("root"), "User-Agent", "=1+1"))
	for i := range 3 {
		root.Put(t, "acme/app", "v1", root.Simple(t, "acme/app", i, nil))
	}
	o.ok("", "tag", "delete", "acme/app:v1", "--yes")
	o.ok("", "robot", "create", "acme+ci", "--role", "writer")
	rows := func(args ...string) [][]string {
		t.Helper()
		list, err := csv.NewReader(strings.NewReader(o.ok("", args...))).ReadAll()
		if err != nil {
			t.Fatalf("purser %q: %v", args, err)
		}
		for _, row := range list[1:] { // the members of the detail have no order
			var detail map[string]any
			if json.Unmarshal([]byte(row[13]), &detail) == nil {
				row[13] = fmt.Sprint(detail)
			}
		}
		return list
	}
	listed := rows("audit", "list", "acme", "-o", "csv", "--limit", "0")
	if two := rows("audit", "list", "acme", "-o", "csv", "--limit", "2"); len(two) != 3 || !slices.EqualFunc(two, listed[:3], slices.Equal) {
		t.Errorf("two entries are %q", two)
	}
	exported := rows("audit", "export", "acme", "--format", "csv")
	exported = slices.DeleteFunc(exported, func(row []string) bool { return row[1] == "export_logs" })
	if len(listed) < 6 || !slices.EqualFunc(listed, exported, slices.Equal) {
		t.Errorf("the list is\n%q\nthe export\n%q", listed, exported)
	}
	if !slices.ContainsFunc(listed, func(row []string) bool { return row[4] == "'=1+1" }) {
		t.Errorf("no cell is kept from spreadsheets: %q", listed)
	}
	o.fails("write text, json or csv", 2, "", "audit", "list", "-o", "xml")
	o.fails("write text or json", 2, "", "tag", "list", "acme/app", "-o", "csv")
}
