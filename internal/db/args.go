package db

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
)

// Args are the named arguments of a statement, by name. The SQL text has @name where it would
// have $1 for a positional argument. A caller passes Args as the only argument after the text
// to Query, QueryRow, Exec or Batch.Queue. A name that is only in the text, or only in Args,
// is an error.
//
// The text must be a constant, or one of a few constants: each text is translated only once,
// and its translation stays in memory as long as the process runs. Translating a long text at
// each use would cost more than encoding its arguments.
type Args map[string]any

// SharedArgs is like Args, but several statements can share it, each of which uses only some
// of the arguments. A name that is in a statement's text and not in SharedArgs is an error; a
// name in SharedArgs that isn't in the text is ignored.
type SharedArgs map[string]any

// RewriteQuery implements pgx.QueryRewriter.
func (a Args) RewriteQuery(_ context.Context, _ *pgx.Conn, sql string, more []any) (string, []any, error) {
	text, args, err := rewrite(a, sql, more)
	if err == nil && len(a) != len(args) {
		return "", nil, fmt.Errorf("%d arguments are given for a statement with %d", len(a), len(args))
	}
	return text, args, err
}

// RewriteQuery implements pgx.QueryRewriter.
func (a SharedArgs) RewriteQuery(_ context.Context, _ *pgx.Conn, sql string, more []any) (string, []any, error) {
	return rewrite(a, sql, more)
}

// numbered is a statement after translation: sql has $1 where the text had the name names[0],
// and so on.
type numbered struct {
	sql   string
	names []string
}

// translated maps the text of a statement to its *numbered.
var translated sync.Map

func rewrite(values map[string]any, sql string, more []any) (string, []any, error) {
	if len(more) > 0 {
		return "", nil, errors.New("a statement has named arguments and others")
	}
	known, ok := translated.Load(sql)
	if !ok {
		s, err := translate(sql, values)
		if err != nil {
			return "", nil, err
		}
		known, _ = translated.LoadOrStore(sql, s)
	}
	s := known.(*numbered)
	args := make([]any, len(s.names))
	for i, name := range s.names {
		value, ok := values[name]
		if !ok {
			return "", nil, fmt.Errorf("argument %s of the statement is missing", name)
		}
		args[i] = value
	}
	return s.sql, args, nil
}

// translate replaces each @name in a statement's text, except in quotes and comments, by $1, $2
// and so on. It returns an error if the name isn't a key of `values`.
func translate(sql string, values map[string]any) (*numbered, error) {
	names := make(pgx.NamedArgs, len(values))
	for name := range values {
		names[name] = name
	}
	text, order, err := names.RewriteQuery(context.Background(), nil, sql, nil)
	if err != nil {
		return nil, err
	}
	s := &numbered{sql: text, names: make([]string, len(order))}
	for i, name := range order {
		if s.names[i], _ = name.(string); name == nil {
			return nil, fmt.Errorf("argument %d of the statement is missing: %s", i+1, text)
		}
	}
	return s, nil
}

// Statements splits the text of an SQL file into its statements and returns a function that
// returns a statement by its name. A line "-- name: x" begins the statement x, which ends with
// a semicolon. Comments must be on lines of their own and aren't sent to the database. The
// function panics if the file has no statement of that name.
func Statements(file string) func(name string) string {
	statements := make(map[string]string)
	var current string
	for line := range strings.Lines(file) {
		comment, isComment := strings.CutPrefix(strings.TrimSpace(line), "--")
		name, isName := strings.CutPrefix(comment, " name: ")
		switch {
		case isComment && isName:
			current = name
		case !isComment && (current != "" || strings.TrimSpace(line) != ""):
			statements[current] += line
		}
	}
	for name, sql := range statements {
		statements[name] = strings.TrimSuffix(strings.TrimSpace(sql), ";")
	}
	return func(name string) string {
		sql := statements[name]
		if sql == "" {
			panic("there is no statement " + name)
		}
		return sql
	}
}
