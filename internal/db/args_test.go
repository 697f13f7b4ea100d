package db_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
)

// TestArgs checks that each name in a statement's text gets its own value, when the text is
// used for the first time and when it is used again. A name that only the text has must be an
// error each time. So must a name that only the arguments have, except with SharedArgs.
func TestArgs(t *testing.T) {
	t.Parallel()
	const text = "SELECT @b || '@c' || @a::text || @b::text -- @d"
	for range 2 {
		for _, wrong := range []db.Args{nil, {"a": "1"}, {"a": "1", "c": "2"}, {"a": "1", "b": "2", "c": "3"}} {
			if sql, args, err := wrong.RewriteQuery(t.Context(), nil, text, nil); err == nil {
				t.Errorf("%v was accepted: %s %v", wrong, sql, args)
			}
		}
		sql, args, err := db.Args{"a": "1", "b": "2"}.RewriteQuery(t.Context(), nil, text, nil)
		if err != nil {
			t.Fatal(err)
		}
		if want := "SELECT $1 || '@c' || $2::text || $1::text -- @d"; sql != want || !slices.Equal(args, []any{"2", "1"}) {
			t.Errorf("it is %s with %v", sql, args)
		}
		if _, _, err := (db.Args{"a": "1", "b": "2"}).RewriteQuery(t.Context(), nil, text, []any{"3"}); err == nil {
			t.Error("a positional argument was accepted beside names")
		}
	}
	if _, args, err := (db.SharedArgs{"a": "1", "b": "2", "c": "3"}).RewriteQuery(t.Context(), nil, text, nil); err != nil || len(args) != 2 {
		t.Errorf("arguments of several statements: %v, %v", args, err)
	}
	if _, _, err := (db.SharedArgs{"a": "1", "c": "3"}).RewriteQuery(t.Context(), nil, text, nil); err == nil {
		t.Error("arguments of several statements may lack a name")
	}
	d := dbtest.New(t)
	b := new(pgx.Batch)
	var first, second string
	b.Queue("SELECT @a::text", db.Args{"a": "1"}).QueryRow(func(row pgx.Row) error { return row.Scan(&first) })
	b.Queue("SELECT @a::text || @b", db.Args{"a": "1", "b": "2"}).QueryRow(func(row pgx.Row) error { return row.Scan(&second) })
	if err := d.Pool.SendBatch(t.Context(), b).Close(); err != nil || first != "1" || second != "12" {
		t.Errorf("a batch returned %q and %q: %v", first, second, err)
	}
	if err := d.Pool.QueryRow(t.Context(), "SELECT @a::text", db.Args{"b": "1"}).Scan(&first); err == nil {
		t.Error("a misspelt name was accepted")
	}
}

// TestStatements checks that comments aren't part of a statement, and that asking for a name
// that the file doesn't have panics.
func TestStatements(t *testing.T) {
	t.Parallel()
	statement := db.Statements("-- About the file; it isn't SQL.\n\n-- name: one\n-- Says why.\nSELECT 1\n\t-- here\n\t+ 1;\n\n-- name: two\nSELECT 2;\n")
	if got := statement("one"); got != "SELECT 1\n\t+ 1" {
		t.Errorf("one is %q", got)
	}
	if got := statement("two"); got != "SELECT 2" {
		t.Errorf("two is %q", got)
	}
	defer func() {
		if recover() == nil {
			t.Error("there is a third")
		}
	}()
	statement("three")
}

// BenchmarkArgs compares two ways to run a long statement with named arguments: translating
// its text at each use, and translating it once.
func BenchmarkArgs(b *testing.B) {
	const text = "SELECT @a::bigint, @b::bigint, @c::text, @d::bytea, @e::text[] FROM things WHERE namespace = @a AND repository = @b AND name = @c "
	long := strings.Repeat(text, 30)
	b.Run("each time", func(b *testing.B) {
		for b.Loop() {
			args := pgx.StrictNamedArgs{"a": 1, "b": 2, "c": "3", "d": []byte{4}, "e": []string{"5"}}
			if _, _, err := args.RewriteQuery(b.Context(), nil, long, nil); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("kept", func(b *testing.B) {
		for b.Loop() {
			args := db.Args{"a": 1, "b": 2, "c": "3", "d": []byte{4}, "e": []string{"5"}}
			if _, _, err := args.RewriteQuery(b.Context(), nil, long, nil); err != nil {
				b.Fatal(err)
			}
		}
	})
}
