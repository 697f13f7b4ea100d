package audit

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
)

// TestCSV: an export as CSV has a row for each entry, whatever clients have written into it, and no
// cell that a spreadsheet takes for a formula.
func TestCSV(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	digest, run := oci.Compute(oci.SHA256, nil), uuid.New()
	must(t, New(d).Append(t.Context(),
		Entry{Kind: PullRepo, Repository: "acme/app", Tag: "v1", Digest: digest, Actor: "ann", Address: "192.0.2.1", UserAgent: "=HYPERLINK(\"http://x\")", Pulls: 3},
		Entry{Kind: DeleteTag, Repository: "acme/app", Actor: "+x", UserAgent: "a \"quoted\", text\nof lines", Run: run, Detail: map[string]any{"reason": "=1+1"}},
		Entry{Kind: ChangeUser, Actor: "@x", UserAgent: "-1", RequestID: "\tx"},
		Entry{Kind: ChangeUser, UserAgent: "\rx"},
		Entry{Kind: ChangeUser, UserAgent: "x;=cmd|' /C calc'!A0; \"=2\";＝3", Actor: "a;b\n=4"}))
	var out bytes.Buffer
	n, err := New(d).Export(t.Context(), &out, Filter{}, CSV)
	must(t, err)
	rows, err := csv.NewReader(bytes.NewReader(out.Bytes())).ReadAll()
	must(t, err)
	if n != 5 || len(rows) != 6 || strings.Join(rows[0], ",") != strings.Join(columns, ",") {
		t.Fatalf("%d entries: %q", n, rows)
	}
	for _, row := range rows {
		for i, cell := range row {
			if cell != "" && strings.ContainsRune("=+-@\t\r", rune(cell[0])) {
				t.Errorf("%s is %q", rows[0][i], cell)
			}
		}
	}
	for line := range strings.SplitSeq(out.String(), "\n") { // of a program that separates cells by semicolons
		for cell := range strings.SplitSeq(line, ";") {
			if cell = strings.Trim(cell, " \""); strings.HasPrefix(cell, "=") || strings.HasPrefix(cell, "＝") {
				t.Errorf("where ; separates cells, one is %q", cell)
			}
		}
	}
	cells := func(kind, column string) (list []string) {
		for _, row := range rows[1:] {
			for i, name := range columns {
				if name == column && row[1] == kind {
					list = append(list, row[i])
				}
			}
		}
		return list
	}
	for _, want := range [][2]string{
		{"pull_repo tag", "v1"}, {"pull_repo digest", digest.String()}, {"pull_repo pulls", "3"}, {"pull_repo policy", ""}, {"pull_repo user_agent", "'=HYPERLINK(\"http://x\")"},
		{"delete_tag user_agent", "a \"quoted\", text\nof lines"}, {"delete_tag run", run.String()}, {"delete_tag namespace", "acme"}, {"delete_tag actor", "'+x"}, {"delete_tag pulls", ""},
	} {
		kind, column, _ := strings.Cut(want[0], " ")
		if got := cells(kind, column); len(got) != 1 || got[0] != want[1] {
			t.Errorf("%s: %q, want %q", want[0], got, want[1])
		}
	}
	var detail map[string]string
	if err := json.Unmarshal([]byte(cells("delete_tag", "detail")[0]), &detail); err != nil || detail["reason"] != "=1+1" {
		t.Errorf("detail %v: %v", detail, err)
	}
}
