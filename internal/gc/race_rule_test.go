package gc_test

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/purser-registry/purser/internal/db/dbtest"
)

// The race tests check how reviews and clients lock. For each SQL statement of a review
// there must be a race test that stops the review before the statement, and one that stops
// it after the statement, that is, before the review's next statement. After all tests of
// the package, TestMain checks this rule and prints the statements for which such a test is
// missing.

// A statement is identified by its text, and by whether its transaction has sent the same
// text before. A review looks for references twice with the same text, before and after it
// locks, and needs race tests for each of these two statements.
type statement struct {
	text  string
	again bool
}

func (s statement) String() string {
	text := s.text
	if len(text) > 300 {
		text = text[:300] + " …"
	}
	if s.again {
		text += "  (again)"
	}
	return text
}

// stops has all SQL statements that the reviews of race tests have sent (`all`), and those
// of them before or after which a race test has stopped a review (`before`, `after`).
var stops = struct {
	sync.Mutex
	all, before, after map[statement]bool
	followed           map[statement]bool // another statement of the review follows it
}{all: map[statement]bool{}, before: map[statement]bool{}, after: map[statement]bool{}, followed: map[statement]bool{}}

// sequence records the statements of one review, in their order.
type sequence struct {
	last, now statement
	seen      map[string]bool // texts that the transaction has sent
}

var spaces = regexp.MustCompile(`\s+`)

// next records that the review is about to send the statement sql.
func (s *sequence) next(sql string) {
	text := strings.TrimSpace(spaces.ReplaceAllString(sql, " "))
	if strings.HasPrefix(text, "begin") || s.seen == nil {
		s.seen = map[string]bool{}
	}
	s.last, s.now = s.now, statement{text, s.seen[text]}
	s.seen[text] = true
	stops.Lock()
	defer stops.Unlock()
	stops.all[s.now] = true
	stops.followed[s.last] = true
}

// stopped records that a test has stopped the review between the statements s.last and
// s.now.
func (s *sequence) stopped() {
	stops.Lock()
	defer stops.Unlock()
	stops.after[s.last], stops.before[s.now] = true, true
}

// unraced returns a problem for each statement before or after which no race test has
// stopped a review.
func unraced() (list []string) {
	stops.Lock()
	defer stops.Unlock()
	for s := range stops.all {
		switch {
		case strings.HasPrefix(s.text, "begin") || s.text == "commit" || s.text == "rollback":
		case !stops.before[s]:
			list = append(list, fmt.Sprintf("no race test stops a review before: %s", s))
		case stops.followed[s] && !stops.after[s]:
			list = append(list, fmt.Sprintf("no race test stops a review after: %s", s))
		}
	}
	slices.Sort(list)
	return list
}

// everything says whether all tests of the package ran. If only some ran, unraced may report
// a statement only because the race test that stops a review there didn't run.
func everything() bool {
	for _, name := range []string{"test.run", "test.skip", "test.list", "test.bench", "test.fuzz"} {
		if flag.Lookup(name).Value.String() != "" {
			return false
		}
	}
	return !testing.Short()
}

// TestMain runs the tests. If all tests ran, it then checks that for each SQL statement of
// a review race tests have stopped a review before and after the statement. With
// PURSER_TEST_RACES=1 it checks this also after a selection such as -run TestRace.
func TestMain(m *testing.M) {
	code := dbtest.Run(m)
	if list := unraced(); code == 0 && len(list) > 0 && (everything() || os.Getenv("PURSER_TEST_RACES") != "") {
		fmt.Println(strings.Join(list, "\n"))
		code = 1
	}
	os.Exit(code)
}
