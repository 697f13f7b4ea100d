package redispulls

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
)

// statistics returns the rows of the statistics of the repository 1, and the pulls of its days.
func statistics(t testing.TB, d *db.DB) (list []string) {
	t.Helper()
	rows, err := d.Pool.Query(t.Context(), `
		SELECT format('%s %s %s %s', tag_name, tag_pull_count, to_char(last_tag_pull_date AT TIME ZONE 'UTC', 'HH24:MI:SS'), current_manifest_digest)
		FROM tagpullstatistics WHERE repository_id = 1
		UNION ALL
		SELECT format('%s %s %s %s', manifest_digest, total_pull_count, to_char(last_pull_date AT TIME ZONE 'UTC', 'HH24:MI:SS'), last_tag_pulled)
		FROM manifestpullstatistics WHERE repository_id = 1
		UNION ALL
		SELECT format('%s %s', day, pulls) FROM repositorypullhistory WHERE repository_id = 1`)
	must(t, err)
	list, err = pgx.CollectRows(rows, pgx.RowTo[string])
	must(t, err)
	slices.Sort(list)
	return list
}

// A scan of Redis may return a key twice, on one page or on two pages. The pulls of the key
// must still count once.
func TestRedisScanRepeats(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	server := startRedis(t)
	r := server.open(t, d)
	for _, a := range r.Add(t.Context(), []Pulls{{1, "v1", digest("a"), 1, noon}, {1, "v2", digest("b"), 1, noon.Add(time.Second)}}) {
		must(t, a.Err)
	}
	c := server.client(t)
	keys, err := c.Keys(t.Context(), counterPrefix+"*").Result()
	must(t, err)
	w := newFlusher(t, r, d, nil)
	must(t, w.Flush(t.Context())) // stores an epoch in Redis
	want := []string{
		"2026-03-01 2", fmt.Sprint("v1 1 12:00:00 ", digest("a")), fmt.Sprint("v2 1 12:00:01 ", digest("b")),
		fmt.Sprint(digest("a"), " 1 12:00:00 v1"), fmt.Sprint(digest("b"), " 1 12:00:01 v2"),
	}
	slices.Sort(want)
	var n int64
	must(t, d.Pool.QueryRow(t.Context(), "SELECT flush FROM redisprocessingstate").Scan(&n))
	for range 2 { // the second time all pulls are counted already
		for _, page := range [][]string{{keys[0], keys[1], keys[0]}, {keys[1]}, {keys[1], keys[1]}} {
			left, err := w.page(t.Context(), n, page)
			must(t, cmp.Or(left, err))
		}
		if got := statistics(t, d); !slices.Equal(got, want) {
			t.Errorf("the statistics are %q, want %q", got, want)
		}
	}
	has, err := countedOf(t.Context(), d.Pool, []counterID{idOf(keys[0]), idOf(keys[1])})
	must(t, err)
	for _, key := range keys {
		h, err := c.HGetAll(t.Context(), key).Result()
		must(t, err)
		if row := has[idOf(key)]; h["pull_count"] != fmt.Sprint(row.count) || h["born"] != fmt.Sprint(row.born) || h["seq"] != fmt.Sprint(row.seq) {
			t.Errorf("%s has something left: %v, counted %+v", key, h, row)
		}
		if ttl := c.TTL(t.Context(), key).Val(); ttl <= 0 || ttl > settledFor {
			t.Errorf("%s stays for %v, want at most %v", key, ttl, settledFor)
		}
	}
	if left := c.SMembers(t.Context(), uncountedKey(1)).Val(); len(left) > 0 {
		t.Errorf("%v aren't settled", left)
	}
}
