package serve

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/blob"
)

// readyAnswers returns which answers /readyz gives: for each of the failures that it knows, the
// status and the names of the lines that tell of it, such as "503 storage pushes".
func readyAnswers(t *testing.T) []string {
	t.Helper()
	fails := errors.New("it fails")
	check := func(err error) func(context.Context) error { return func(context.Context) error { return err } }
	found := map[string]bool{}
	for _, c := range []struct{ database, store, full, rights, statistics error }{
		{}, {database: fails}, {store: fails}, {store: blob.ErrWrongStore}, {store: blob.ErrReadOnly}, {full: fails}, {rights: fails}, {database: fails, rights: fails}, {statistics: fails},
	} {
		ready, _, text := runChecks(t.Context(), []readinessCheck{
			{name: "database", run: check(c.database)}, storageCheck(check(c.store)), pushesCheck(check(c.store), func() error { return c.full }, check(c.rights)),
			{name: "statistics", run: check(c.statistics), spare: true},
		})
		answer := fmt.Sprint(map[bool]int{true: http.StatusOK, false: http.StatusServiceUnavailable}[ready])
		for line := range strings.Lines(string(text)) {
			if name, what, _ := strings.Cut(strings.TrimSpace(line), ": "); what != "ok" {
				answer += " " + name
			}
		}
		found[answer] = true
	}
	r := newReadiness()
	for range 2 {
		rec := httptest.NewRecorder()
		r.ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/readyz", nil))
		found[fmt.Sprint(rec.Code, " ", strings.TrimSpace(rec.Body.String()))] = true
		r.stopping()
	}
	return slices.Sorted(maps.Keys(found))
}

// TestReadyTableOfDocs: the table "What /readyz means" of docs/configuration.md has the answers that
// /readyz gives, and no others.
func TestReadyTableOfDocs(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "| what fails | status | line of the answer |\n|---|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	line := regexp.MustCompile("`([a-z]+)`")
	found := map[string]bool{}
	for row := range strings.Lines(table) {
		cells := strings.Split(strings.TrimSpace(row), "|")
		if len(cells) != 5 {
			t.Fatalf("a row isn't of three cells: %s", row)
		}
		status, lines := strings.TrimSpace(cells[2]), []string{}
		for _, m := range line.FindAllStringSubmatch(cells[3], -1) {
			lines = append(lines, m[1])
		}
		if slices.Contains(lines, "starting") { // the answer is one of these words alone
			for _, word := range lines {
				found[status+" "+word] = true
			}
			continue
		}
		found[strings.TrimSpace(status+" "+strings.Join(lines, " "))] = true
	}
	if got, want := slices.Sorted(maps.Keys(found)), readyAnswers(t); !slices.Equal(got, want) {
		t.Errorf("the table has the answers %q, want %q", got, want)
	}
}
