package throttle

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
)

// TestMain runs the tests, and then fails if a goroutine is left after the end of all tests
// and of the database server.
func TestMain(m *testing.M) {
	code := dbtest.Run(m)
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func exec(t testing.TB, d *db.DB, sql string, args ...any) {
	t.Helper()
	if _, err := d.Pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// count returns the result of a query for one number.
func count(t testing.TB, d *db.DB, sql string, args ...any) (n float64) {
	t.Helper()
	if err := d.Pool.QueryRow(t.Context(), sql, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return n
}
