package catalogtest

import (
	"testing"

	"github.com/jackc/pgx/v5"
)

// RowsRead returns, for each index and table, how many rows were read from it by sessions that
// have ended. Sessions that are still open may not have reported their numbers yet.
func RowsRead(t *testing.T, conn *pgx.Conn) map[string]int64 {
	t.Helper()
	rows, err := conn.Query(t.Context(), `
		SELECT indexrelname, idx_tup_read FROM pg_stat_user_indexes
		UNION ALL SELECT relname, seq_tup_read FROM pg_stat_user_tables WHERE relname !~ 'defaults$'`)
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[string]int64)
	var name string
	var n int64
	if _, err := pgx.ForEachRow(rows, []any{&name, &n}, func() error { found[name] += n; return nil }); err != nil {
		t.Fatal(err)
	}
	return found
}
