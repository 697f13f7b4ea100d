package catalog_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/catalog/browse"
	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/db"
)

// statements keeps the statements that a pool sends.
type statements struct {
	mu   sync.Mutex
	sent []pgx.TraceQueryStartData
}

func (s *statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent = append(s.sent, q)
	return ctx
}

func (*statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TestPlansOfTagLists: in a repository of 100,000 tags whose names mix upper and lower case, a page of
// tags, wherever it begins and in both directions, comes from an index in its order: PostgreSQL
// neither sorts nor reads more than the page has.
func TestPlansOfTagLists(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Push(t, "acme/app", "config")
	b.Put(t, "acme/app", catalogtest.Image(t, b.Push(t, "acme/app", "config"), nil, nil), "V1")
	ctx := t.Context()
	const tags, page = 100_000, 100
	b.manyTags(t, tags)
	if _, err := b.DB.Pool.Exec(ctx, "ANALYZE tags"); err != nil {
		t.Fatal(err)
	}
	sent := new(statements)
	cfg := b.DB.Pool.Config()
	cfg.ConnConfig.Tracer = sent
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	d := &db.DB{Pool: db.PoolOver(pool)}
	c := catalog.New(catalog.Options{DB: d, Background: d, CacheOff: true})
	for name, list := range tagLists(ctx, t, c, page) {
		sent.sent = nil
		if n := list(); n != page {
			t.Errorf("%s: %d tags", name, n)
		}
		looked := 0
		for _, q := range sent.sent {
			if !strings.Contains(q.SQL, "FROM tags") {
				continue
			}
			looked++
			for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
				plan := explained(t, b.DB.Pool.Pool, mode, q)
				if buffers := buffersOf(t, plan); strings.Contains(plan, "Sort") || strings.Contains(plan, "Seq Scan on tags") || strings.Contains(plan, "Bitmap") || buffers > 3*page+100 {
					t.Errorf("%s, %s: %d pages were read\n%s", name, mode, buffers, plan)
				}
			}
		}
		if looked == 0 {
			t.Errorf("%s: no statement lists tags", name)
		}
	}
}

// manyTags adds tags until there are n, without the triggers that count them and queue reviews.
func (b bundle) manyTags(t *testing.T, n int) {
	t.Helper()
	ctx := db.Unhurried(t.Context())
	err := pgx.BeginFunc(ctx, b.DB.Pool, func(tx pgx.Tx) error {
		if err := db.LiftLimits(ctx, tx); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "SET LOCAL session_replication_role = replica"); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `
			INSERT INTO tags (top_level_namespace_id, repository_id, name, manifest_id, created_at)
			SELECT top_level_namespace_id, repository_id, (ARRAY['Rel-', 'rel-', 'v', 'V_', 'main.'])[1 + n % 5] || md5(n::text), manifest_id,
				now() - n * interval '1 second'
			FROM tags, generate_series(1, $1::int - 1) n`, n)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// tagLists returns lists of tags, each of which returns how many tags it has. They begin at the
// start and in the middle, at names that aren't tags too.
func tagLists(ctx context.Context, t *testing.T, c *catalog.Catalog, page int) map[string]func() int {
	lists := make(map[string]func() int)
	for _, last := range []string{"", "Rel-8", "V", "main.", "rel-80000000000000000000000000000000", "v" + strconv.Itoa(rand.IntN(5))} {
		lists["tags after "+strconv.Quote(last)] = func() int {
			names, more, err := c.Tags(ctx, "acme/app", last, page)
			if err != nil || !more {
				t.Error(more, err)
			}
			return len(names)
		}
	}
	for _, order := range []browse.TagOrder{browse.TagsByName, browse.TagsByPush} {
		for _, descending := range []bool{false, true} {
			for _, middle := range []bool{false, true} {
				q := browse.TagQuery{Order: order, Descending: descending, Limit: page}
				lists[fmt.Sprintf("order %v, descending %v, middle %v", order, descending, middle)] = func() int {
					found, err := browse.New(c).Tags(ctx, "acme/app", q)
					if err == nil && middle {
						q.After = found.Next
						found, err = browse.New(c).Tags(ctx, "acme/app", q)
					}
					if err != nil {
						t.Error(err)
					}
					return len(found.Tags)
				}
			}
		}
	}
	return lists
}

// explained runs a statement under EXPLAIN, and returns its plan.
func explained(t *testing.T, pool *pgxpool.Pool, mode string, q pgx.TraceQueryStartData) string {
	t.Helper()
	var plan []string
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), "SET LOCAL plan_cache_mode = "+mode); err != nil {
			return err
		}
		rows, err := tx.Query(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, TIMING off) "+q.SQL, q.Args...)
		if err != nil {
			return err
		}
		plan, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(plan, "\n")
}

var sharedBuffers = regexp.MustCompile(`Buffers: shared(?: hit=(\d+))?(?: read=(\d+))?`)

// buffersOf returns how many of the database's pages the first, outermost node of a plan read.
func buffersOf(t *testing.T, plan string) (n int) {
	t.Helper()
	m := sharedBuffers.FindStringSubmatch(plan)
	if m == nil {
		t.Fatalf("the plan has no buffers:\n%s", plan)
	}
	for _, text := range m[1:] {
		more, _ := strconv.Atoi(text) //nolint:errcheck // "": none
		n += more
	}
	return n
}
