//go:build linux

package builtinpg

import (
	"os"
	"strconv"
	"strings"
	"testing"
)

func TestBackground(t *testing.T) {
	t.Parallel()
	s := begin(t, testOptions(newDir(t)))
	conn, other := connect(t, s.DSN("")), connect(t, s.DSN(""))
	before := nice(t, other.PgConn().PID())
	must(t, Background(conn.PgConn().PID()))
	if got := nice(t, conn.PgConn().PID()); got != min(before+backgroundNice, 19) {
		t.Errorf("its nice value is %d, that of others %d", got, before)
	}
	if got := nice(t, other.PgConn().PID()); got != before {
		t.Errorf("the nice value of another connection went from %d to %d", before, got)
	}
	var n int
	if err := conn.QueryRow(t.Context(), "SELECT 1").Scan(&n); err != nil || n != 1 {
		t.Errorf("asked 1, got %d and %v", n, err)
	}
	end(t, s)
	wantError(t, Background(1<<22+1), "priority", strconv.Itoa(1<<22+1)) // above what Linux gives out
}

// nice is the nice value of a process, the 19th field of its stat.
func nice(t *testing.T, pid uint32) int {
	t.Helper()
	text, err := os.ReadFile("/proc/" + strconv.FormatUint(uint64(pid), 10) + "/stat")
	must(t, err)
	_, rest, _ := strings.Cut(string(text), ") ")
	n, err := strconv.Atoi(strings.Fields(rest)[16])
	must(t, err)
	return n
}
