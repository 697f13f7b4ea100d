package db

import (
	"github.com/jackc/pgx/v5"
)

// PageBytes is how many bytes the rows of a page of a list have at most, as PostgreSQL sends
// them, if the first alone doesn't have more.
const PageBytes = 512 << 10

// Page collects the rows of a query for a page of a list. The query finds n+1 rows, of which the
// last only says that there are more; they end earlier with PageBytes.
func Page[T any](rows pgx.Rows, err error, n int, scan pgx.RowToFunc[T]) (list []T, more bool, _ error) {
	if err != nil {
		return nil, false, err
	}
	defer rows.Close()
	list = []T{}
	for bytes := 0; rows.Next(); {
		for _, value := range rows.RawValues() {
			bytes += len(value)
		}
		if len(list) >= n || len(list) > 0 && bytes > PageBytes {
			more = true
			break
		}
		next, err := scan(rows)
		if err != nil {
			return nil, false, err
		}
		list = append(list, next)
	}
	rows.Close()
	return list, more, rows.Err()
}
