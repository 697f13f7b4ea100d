// Package loosefk measures loose foreign keys in two ways. It compares how fast the worker
// deletes the children of deleted parents with how fast plain batched deletes delete as many
// rows of an equal table. And it compares deletions of parents in a table with the trigger of
// loose foreign keys with those in a table without it.
//
//	go run ./bench loosefk
//
// It starts a PostgreSQL server in a directory that it removes afterwards.
package loosefk

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/purser-registry/purser/internal/builtinpg"
	"github.com/purser-registry/purser/loosefk"
)

// Run runs this scenario with the flags in args.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flag := flag.NewFlagSet("loosefk", flag.ContinueOnError)
	flag.SetOutput(stderr)
	children := flag.Int("children", 1_000_000, "children in each workload of the worker")
	rounds := flag.Int("rounds", 2000, "single deletes of parents")
	batch := flag.Int("batch", 1000, "rows per query")
	dir := flag.String("dir", "", "directory for the database; default the temporary directory")
	if err := flag.Parse(args); err != nil {
		return err
	}
	return run(ctx, *children, *rounds, *batch, *dir, stdout)
}

const schema = `
	CREATE TABLE parents (id bigint PRIMARY KEY, name text);
	CREATE TABLE plain_parents (id bigint PRIMARY KEY, name text);
	CREATE TABLE children (id bigserial PRIMARY KEY, parent_id bigint, payload text);
	CREATE TABLE plain_children (id bigserial PRIMARY KEY, parent_id bigint, payload text);
	CREATE INDEX ON children (parent_id);
	CREATE INDEX ON plain_children (parent_id)`

func run(ctx context.Context, children, rounds, batch int, dir string, stdout io.Writer) error {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	base, err := os.MkdirTemp(dir, "purser-bench-loosefk-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(base) //nolint:errcheck // a leftover directory harms nobody
	pg, err := builtinpg.Start(ctx, builtinpg.Options{DataDir: filepath.Join(base, "postgres"), Log: log})
	if err != nil {
		return err
	}
	defer pg.Stop(context.WithoutCancel(ctx)) //nolint:errcheck // nothing depends on it any more
	pool, err := pgxpool.New(ctx, pg.DSN("purser"))
	if err != nil {
		return err
	}
	defer pool.Close()
	m := &measure{ctx: ctx, pool: pool, batch: batch, out: tabwriter.NewWriter(stdout, 0, 0, 2, ' ', tabwriter.AlignRight)}
	m.exec(schema)
	if m.err == nil {
		m.err = loosefk.DefaultSchema.Install(ctx, pool)
	}
	if m.err == nil {
		m.err = loosefk.DefaultSchema.TrackRecordDeletions(ctx, pool, "parents")
	}
	fmt.Fprintln(m.out, "workload\trows\tloose\tplain\tratio\t")
	m.cleanUp("children of one parent, rows/s", 1, children)
	m.cleanUp("children of many parents, 10 each, rows/s", children/10, children)
	m.triggers(rounds)
	m.statement(100_000)
	if m.err != nil {
		return m.err
	}
	return m.out.Flush()
}

// measure runs workloads until one fails.
type measure struct {
	ctx   context.Context
	pool  *pgxpool.Pool
	batch int
	out   *tabwriter.Writer
	err   error
}

func (m *measure) exec(sql string, args ...any) (rows int64) {
	if m.err != nil {
		return 0
	}
	tag, err := m.pool.Exec(m.ctx, sql, args...)
	if err != nil {
		m.err = fmt.Errorf("%s: %w", strings.Join(strings.Fields(sql), " "), err)
	}
	return tag.RowsAffected()
}

func (m *measure) took(fn func()) time.Duration {
	start := time.Now()
	fn()
	return time.Since(start)
}

// cleanUp deletes all parents, and measures how fast the worker deletes their children. For
// comparison it measures plain batched deletes of as many children of an equal table. `name`
// is the first column of the report's row.
func (m *measure) cleanUp(name string, parents, children int) {
	for _, table := range []string{"", "plain_"} {
		m.exec("TRUNCATE " + table + "parents, " + table + "children")
		m.exec("INSERT INTO "+table+"parents SELECT g, 'parent' FROM generate_series(1, $1::int) g", parents)
		m.exec("INSERT INTO "+table+"children (parent_id, payload) SELECT g % $1 + 1, 'payload of some length ' || g FROM generate_series(0, $2::int - 1) g", parents, children)
		m.exec("VACUUM ANALYZE " + table + "children")
	}
	m.exec("CHECKPOINT")
	// Each plain delete names several parents, as many as have one batch of children together,
	// or a single parent that has more.
	group := min(parents, max(1, m.batch*parents/children))
	plain := m.took(func() {
		for first := 1; first <= parents && m.err == nil; {
			if m.exec(`DELETE FROM plain_children WHERE id IN (
				SELECT id FROM plain_children WHERE parent_id = ANY (ARRAY(SELECT generate_series($1::bigint, $2))) LIMIT $3)`,
				first, first+group-1, m.batch) < int64(m.batch) || parents > 1 {
				first += group
			}
		}
	})
	if n := m.exec("SELECT FROM plain_children"); n > 0 && m.err == nil {
		m.err = fmt.Errorf("plain deletes have left %d rows", n)
	}
	m.exec("DELETE FROM parents")
	m.exec("CHECKPOINT")
	loose := m.took(func() { m.work(children) })
	m.report(name, children, float64(children)/loose.Seconds(), float64(children)/plain.Seconds())
}

// work runs the worker until no record is pending.
func (m *measure) work(children int) {
	if m.err != nil {
		return
	}
	defs, err := loosefk.Parse("bench.yml", strings.NewReader("children: [{table: parents, column: parent_id, on_delete: async_delete}]"))
	if err != nil {
		m.err = err
		return
	}
	w, err := loosefk.New(loosefk.Options{
		Databases: loosefk.Databases{{Name: "main", Pool: m.pool}}, Definitions: defs, DeleteLimit: m.batch,
		MaxDeletes: 1_000_000_000, MaxRuntime: time.Hour,
	})
	if err != nil {
		m.err = err
		return
	}
	r, err := w.RunOnce(m.ctx, "main")
	if err == nil && r.Deletes != children {
		err = fmt.Errorf("%d children were deleted, want %d", r.Deletes, children)
	}
	m.err = err
}

// triggers measures deletions of one parent each, with their commits, alternately in a table
// with the trigger of loose foreign keys and in an equal table without it.
func (m *measure) triggers(rounds int) {
	for _, table := range []string{"", "plain_"} {
		m.exec("TRUNCATE " + table + "parents")
		m.exec("INSERT INTO "+table+"parents SELECT g, 'parent' FROM generate_series(1, $1::int) g", 2*rounds)
	}
	var loose, plain time.Duration
	for _, sync := range []string{"on", "off"} {
		loose, plain = 0, 0
		first := 0
		if sync == "off" {
			first = rounds
		}
		conn, err := m.pool.Acquire(m.ctx)
		if err != nil {
			m.err = err
			return
		}
		delete1 := func(table string, id int) time.Duration {
			return m.took(func() {
				if _, err := conn.Exec(m.ctx, "DELETE FROM "+table+" WHERE id = $1", id); err != nil {
					m.err = err
				}
			})
		}
		if _, err := conn.Exec(m.ctx, "SET synchronous_commit = "+sync); err != nil {
			m.err = err
		}
		for i := 1; i <= rounds && m.err == nil; i++ {
			loose += delete1("parents", first+i)
			plain += delete1("plain_parents", first+i)
		}
		conn.Release()
		m.report("delete of one parent, synchronous_commit "+sync+", µs", rounds,
			float64(loose.Microseconds())/float64(rounds), float64(plain.Microseconds())/float64(rounds))
	}
}

// statement measures one statement that deletes many parents.
func (m *measure) statement(rows int) {
	for _, table := range []string{"", "plain_"} {
		m.exec("TRUNCATE " + table + "parents")
		m.exec("INSERT INTO "+table+"parents SELECT g, 'parent' FROM generate_series(1, $1::int) g", rows)
	}
	m.exec("CHECKPOINT")
	plain := m.took(func() { m.exec("DELETE FROM plain_parents") })
	m.exec("CHECKPOINT")
	loose := m.took(func() { m.exec("DELETE FROM parents") })
	m.report("delete of many parents in one statement, ms", rows, float64(loose.Milliseconds()), float64(plain.Milliseconds()))
}

func (m *measure) report(name string, rows int, loose, plain float64) {
	if m.err == nil {
		fmt.Fprintf(m.out, "%s\t%d\t%.0f\t%.0f\t%.2f\t\n", name, rows, loose, plain, loose/plain)
	}
}
