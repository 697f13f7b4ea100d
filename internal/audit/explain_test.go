package audit

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/purser-registry/purser/internal/db"
)

// unbounded returns a function that runs a statement in a transaction without the time
// limits of the pool's connections.
func unbounded(t testing.TB, sql string, args ...any) func(*pgxpool.Conn) error {
	return func(c *pgxpool.Conn) error {
		ctx := db.Unhurried(t.Context())
		return pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error {
			if err := db.LiftLimits(ctx, tx); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, sql, args...)
			return err
		})
	}
}

// explain prepares and executes a statement under EXPLAIN ANALYZE. It returns the plan and
// the number of 8 KiB database pages that the statement read.
func explain(t testing.TB, pool *pgxpool.Pool, sql string, args []any) (plan string, buffers int) {
	t.Helper()
	literals := make([]string, len(args))
	for i, a := range args {
		literals[i] = literalOf(t, a)
	}
	must(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		ctx := t.Context()
		if _, err := tx.Exec(ctx, "PREPARE q AS "+sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			return err
		}
		call := "EXECUTE q"
		if len(args) > 0 {
			call += "(" + strings.Join(literals, ", ") + ")"
		}
		var text string
		rows, err := tx.Query(ctx, "EXPLAIN (ANALYZE, BUFFERS, TIMING off) "+call, pgx.QueryExecModeSimpleProtocol)
		if err != nil {
			return err
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return err
		}
		text = strings.Join(lines, "\n")
		var raw []byte
		if err := tx.QueryRow(ctx, "EXPLAIN (ANALYZE, BUFFERS, TIMING off, FORMAT json) "+call, pgx.QueryExecModeSimpleProtocol).Scan(&raw); err != nil {
			return err
		}
		var tree []struct {
			Plan struct {
				Hit  int `json:"Shared Hit Blocks"`
				Read int `json:"Shared Read Blocks"`
			}
		}
		if err := json.Unmarshal(raw, &tree); err != nil {
			return err
		}
		plan, buffers = text, tree[0].Plan.Hit+tree[0].Plan.Read
		_, err = tx.Exec(ctx, "DEALLOCATE q")
		return err
	}))
	return plan, buffers
}

func literalOf(t testing.TB, a any) string {
	t.Helper()
	switch a := a.(type) {
	case int:
		return fmt.Sprint(a)
	case int64:
		return fmt.Sprint(a)
	case string:
		return "'" + a + "'"
	case time.Time:
		return "'" + a.Format(time.RFC3339Nano) + "'"
	case uuid.UUID:
		return "'" + a.String() + "'"
	case []byte:
		return `'\x` + hex.EncodeToString(a) + "'"
	case []string:
		return "'{" + strings.Join(a, ",") + "}'"
	case []int64:
		return "'{" + strings.Trim(strings.ReplaceAll(fmt.Sprint(a), " ", ","), "[]") + "}'"
	case []time.Time:
		list := make([]string, len(a))
		for i, moment := range a {
			list[i] = moment.Format(time.RFC3339)
		}
		return "'{" + strings.Join(list, ",") + "}'"
	case []Kind:
		list := make([]string, len(a))
		for i, k := range a {
			list[i] = string(k)
		}
		return "'{" + strings.Join(list, ",") + "}'"
	}
	t.Fatalf("no literal of a %T", a)
	return ""
}
