package audit

import (
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
)

// NamespaceIs tells a namespace from others that have had its name, as the fields Namespace,
// NamespaceID and Born of a Filter do.
type NamespaceIs struct {
	Name string
	ID   int64
	Born time.Time
}

const (
	// clocks is how much older than its namespace an entry may seem, since times of pulls are by other
	// clocks.
	clocks = time.Hour

	// fewest is the smallest number of entries that a page may examine in each of several namespaces.
	fewest = 10

	// ofNamespace says that an entry is of the namespace n (see namespaces). PostgreSQL can't look into a
	// CASE. It would take a comparison of ids for one that few entries fulfil, and read and sort all entries
	// of a namespace instead of the newest.
	ofNamespace = "namespace = n.name AND CASE n.id WHEN 0 THEN true ELSE namespace_id = n.id END AND time >= n.born"
)

// readsAmong says that the namespaces of Among are what the statement reads.
func (f Filter) readsAmong() bool { return f.Among != nil && f.Run == uuid.Nil }

// namespaces returns the namespaces of Among as rows n (name, id, born).
func (f Filter) namespaces(arg func(any) string) string {
	names, ids, born := make([]string, len(f.Among)), make([]int64, len(f.Among)), make([]time.Time, len(f.Among))
	for i, n := range f.Among {
		names[i], ids[i] = n.Name, n.ID
		if !n.Born.IsZero() {
			born[i] = n.Born.Add(-clocks)
		}
	}
	return fmt.Sprintf("unnest(%s::text[], %s::bigint[], %s::timestamptz[]) AS n (name, id, born)", arg(names), arg(ids), arg(born))
}

// among is query for a filter with several namespaces. It reads the newest entries of each of them by the
// index of namespaces, and no entry of any other: neither how long the statement takes nor where its page
// ends says how much happens elsewhere. The namespaces are arguments: with a text of its own for each number
// of them, PostgreSQL would keep plans of many MiB.
//
// Each namespace has an equal share of the entries that the page may examine. In a namespace that uses up its
// share there may be further entries, so the page ends with the newest entry that is the last of a share: up
// to there every namespace was read completely.
func (f Filter) among(limit, bound int, all, rest []string, arg func(any) string) string {
	share := max(bound/max(len(f.Among), 1), fewest)
	if len(rest) == 0 {
		share, rest = min(share, limit), []string{"true"}
	}
	return fmt.Sprintf(`
		SELECT %s, selected, nth = %d FROM (
			SELECT a.*, COALESCE(%s, false) AS selected FROM %s CROSS JOIN LATERAL (
				SELECT *, row_number() OVER (ORDER BY time DESC, id DESC) AS nth
				FROM auditlog WHERE %s ORDER BY time DESC, id DESC LIMIT %d) a) scanned
		WHERE selected OR nth = %d
		ORDER BY time DESC, id DESC LIMIT %d`,
		entryColumns, share, strings.Join(rest, " AND "), f.namespaces(arg),
		strings.Join(append([]string{ofNamespace}, all...), " AND "), share, share, limit)
}
