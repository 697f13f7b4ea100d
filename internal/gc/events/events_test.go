package events_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/gc/events"
)

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestEvents(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, e := range events.All {
		if seen[e.Name] {
			t.Errorf("%s is in the table twice", e.Name)
		}
		seen[e.Name] = true
		if e.Name == "" || e.Queues == "" || e.Because == "" || e.Kind != events.Manifest && e.Kind != events.Blob {
			t.Errorf("%+v is incomplete", e)
		}
		if e.DelayOf != "" && !slices.Contains(events.WithDelay(), e.DelayOf) {
			t.Errorf("%s has the delay of %s, which has none of its own", e.Name, e.DelayOf)
		}
	}
	if got, want := events.Because("tag_delete"), "a tag of it was deleted"; got != want {
		t.Errorf("because %q, want %q", got, want)
	}
	if got, want := events.Because("unknown"), "of unknown"; got != want {
		t.Errorf("because %q, want %q", got, want)
	}
}

var (
	insert  = regexp.MustCompile(`(?s)(?:INSERT INTO gc_(manifest|blob)_review_queue\b.*?ON CONFLICT|UPDATE gc_(manifest)_review_queue q\s+SET [^\x60]*?event = '[a-z_]+')`)
	literal = regexp.MustCompile(`'([a-z_]+)'`)
	delay   = regexp.MustCompile(`gc_review_after\('([^']*)'\)`)
)

// TestSQL checks the SQL statements that write to the review queues: each must name an
// event of the list All that belongs to this queue, and each review delay that a statement
// asks for must exist.
func TestSQL(t *testing.T) {
	t.Parallel()
	written := map[string]bool{}
	for _, pattern := range []string{"../../db/routines/*.sql", "../../catalog/*", "../*"} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			if strings.HasSuffix(path, "_test.go") || !strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, ".sql") {
				continue
			}
			text := read(t, path)
			for _, m := range delay.FindAllStringSubmatch(text, -1) {
				if !slices.Contains(events.WithDelay(), m[1]) {
					t.Errorf("%s: gc_review_after('%s'): no such event has a delay", path, m[1])
				}
			}
			for _, m := range insert.FindAllStringSubmatch(text, -1) {
				for _, event := range literal.FindAllStringSubmatch(m[0], -1) {
					written[event[1]] = true
					if !slices.ContainsFunc(events.All, func(e events.Event) bool { return e.Name == event[1] && string(e.Kind) == m[1]+m[2] }) {
						t.Errorf("%s queues a %s for the event %s, which isn't in the table", path, m[1]+m[2], event[1])
					}
				}
			}
		}
	}
	for _, e := range events.All {
		if !written[e.Name] {
			t.Errorf("no statement writes the event %s", e.Name)
		}
	}
}

// TestDocumentation checks that the tables of events in docs/garbage-collection.md and
// docs/configuration.md have exactly the events of events.All, with the same order and
// words. The table in docs/configuration.md must also have the default review delay.
func TestDocumentation(t *testing.T) {
	t.Parallel()
	var queues, delays []string
	for _, e := range events.All {
		queues = append(queues, "| `"+e.Name+"` | "+e.Queues+" |")
		if e.DelayOf == "" {
			unset := "`gc.review_after`"
			if e.Default > 0 {
				unset = fmt.Sprintf("%gh, or `gc.review_after` where that isn't %gh", e.Default.Hours(), events.DefaultDelay.Hours())
			}
			delays = append(delays, "| `"+e.Name+"` | "+unset+" | "+e.Queues+" |")
		}
	}
	text := read(t, "../../../docs/garbage-collection.md")
	_, table, _ := strings.Cut(text, "\n| event | queues |")
	table, _, _ = strings.Cut(table, "\n\n")
	if got := regexp.MustCompile("(?m)^\\| `.*?` \\| .*? \\|").FindAllString(table, -1); !slices.Equal(got, queues) {
		t.Errorf("the table of events in docs/garbage-collection.md begins its rows with\n%s\nwant\n%s",
			strings.Join(got, "\n"), strings.Join(queues, "\n"))
	}
	text = read(t, "../../../docs/configuration.md")
	_, table, _ = strings.Cut(text, "\n| Event | Default |")
	table, _, _ = strings.Cut(table, "\n\n")
	if got := regexp.MustCompile("(?m)^\\| `.*").FindAllString(table, -1); !slices.Equal(got, delays) {
		t.Errorf("docs/configuration.md has the delays\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(delays, "\n"))
	}
	if hours := "| `24h` |"; events.DefaultDelay.Hours() != 24 || !strings.Contains(text, "| `gc.review_after` | `PURSER_GC_REVIEW_AFTER` "+hours) {
		t.Errorf("the default delay is %s, docs/configuration.md says otherwise", events.DefaultDelay)
	}
}
