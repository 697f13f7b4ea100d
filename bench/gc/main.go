// Package gc measures garbage collection: how many manifests and blobs one worker reviews and
// deletes per second, on registries of several sizes. For comparison it measures one DELETE
// statement that deletes as many rows of the same kind.
//
//	go run ./bench gc -sizes 10000,1000000
//
// The scenario gc starts a PostgreSQL server in a directory that it removes afterwards, fills
// the database by SQL, and runs the reviews as the registry's workers do. No blob has an
// object in a store, so the figures don't include the cost of a store.
//
// The scenario mass-delete starts the server programs that are named by -servers, each with a
// directory of its own, and measures how much the deletion of many images slows down pushes
// and pulls:
//
//	go run ./bench mass-delete -servers ./purser,/usr/local/bin/purser
//
// The scenario collect starts servers in the same way, and measures the time from the first
// deletion until the servers' stores have none of the images' objects. It does so with and
// without concurrent pushes and pulls:
//
//	go run ./bench collect -servers ./purser
//
// The scenario triggers starts a PostgreSQL server, and measures the SQL of pushes with the
// triggers of garbage collection and without them, in windows that alternate. Linux only, for
// the CPU time:
//
//	go run ./bench triggers
package gc

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/builtinpg"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/gc"
)

// Run runs the scenario gc with the flags in args.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flag := flag.NewFlagSet("gc", flag.ContinueOnError)
	flag.SetOutput(stderr)
	sizes := flag.String("sizes", "10000,100000", "manifests in the registry, one table row per size")
	sample := flag.Int("sample", 5000, "rows of each workload")
	partitions := flag.Int("partitions", db.DefaultPartitions, "hash partitions of the large tables")
	batch := flag.Int("batch", 500, "rows per review")
	dir := flag.String("dir", "", "directory for the database; default the temporary directory")
	dsn := flag.String("dsn", "", "use this database, empty or filled by an earlier run, and leave it filled")
	if err := flag.Parse(args); err != nil {
		return err
	}
	return run(ctx, *sizes, *sample, *partitions, *batch, *dir, *dsn, stdout)
}

// MassDelete runs the scenario mass-delete with the flags in args.
func MassDelete(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	m, dir, err := servers("mass-delete", args, stdout, stderr)
	if err != nil {
		return err
	}
	return m.run(ctx, dir)
}

// Collect runs the scenario collect with the flags in args.
func Collect(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	m, dir, err := servers("collect", args, stdout, stderr)
	if err != nil {
		return err
	}
	return m.collect(ctx, dir)
}

// servers parses the flags of the scenarios that start servers, mass-delete and collect. It
// returns the measurement that the flags describe, and the directory below which the servers
// keep their data.
func servers(scenario string, args []string, stdout, stderr io.Writer) (m massDelete, dir string, err error) {
	flag := flag.NewFlagSet(scenario, flag.ContinueOnError)
	flag.SetOutput(stderr)
	m = massDelete{out: stdout, deleters: 4, pushRate: 10, pullRate: 50}
	flag.StringVar(&dir, "dir", "", "directory for the servers' data; default the temporary directory")
	binaries := flag.String("servers", "./purser", "programs to compare, in turn")
	flag.IntVar(&m.images, "images", 2000, "images deleted in a round, by four clients")
	flag.IntVar(&m.rounds, "rounds", 5, "rounds, each of them without and with pushes or deletions beside")
	if scenario == "mass-delete" {
		flag.DurationVar(&m.quiet, "quiet", 15*time.Second, "length of a quiet window")
	}
	flag.DurationVar(&m.after, "after", 5*time.Second, "how long the window goes on behind the last deletion")
	err = flag.Parse(args)
	m.binaries = strings.Split(*binaries, ",")
	return m, dir, err
}

func run(ctx context.Context, sizes string, sample, partitions, batch int, dir, dsn string, stdout io.Writer) error {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	if dsn == "" {
		base, err := os.MkdirTemp(dir, "purser-bench-gc-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(base) //nolint:errcheck // a leftover directory harms nobody
		pg, err := builtinpg.Start(ctx, builtinpg.Options{DataDir: filepath.Join(base, "postgres"), Log: log})
		if err != nil {
			return err
		}
		defer pg.Stop(context.WithoutCancel(ctx)) //nolint:errcheck // nothing depends on it any more
		dsn = pg.DSN("purser")
	}
	if _, err := db.Migrate(ctx, dsn, db.MigrateOptions{Partitions: partitions}); err != nil {
		return err
	}
	m, err := newMeasure(ctx, dsn, batch, log)
	if err != nil {
		return err
	}
	defer m.close()
	out := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(out, "manifests\tworkload\trows\trows/s\tof one DELETE\t")
	for size := range strings.SplitSeq(sizes, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(size))
		if err != nil {
			return fmt.Errorf("-sizes: %w", err)
		}
		start := time.Now()
		if err := m.fill(ctx, n); err != nil {
			return fmt.Errorf("filling: %w", err)
		}
		fmt.Fprintf(os.Stderr, "%d manifests, filled in %s\n", n, time.Since(start).Round(time.Second))
		for _, w := range workloads {
			if err := m.run(ctx, out, n, sample, w); err != nil {
				return fmt.Errorf("%s at %d manifests: %w", w.name, n, err)
			}
		}
		if err := out.Flush(); err != nil {
			return err
		}
	}
	return nil
}

// measure is a database and a catalog on it.
type measure struct {
	main, reviews *db.DB
	catalog       *catalog.Catalog
	gc            *gc.Collector
	batch         int
	filled        int
}

func newMeasure(ctx context.Context, dsn string, batch int, log *slog.Logger) (*measure, error) {
	main, err := db.Open(ctx, db.Options{DSN: dsn, StatementTimeout: -1, Log: log})
	if err != nil {
		return nil, err
	}
	reviews, err := db.Open(ctx, db.Options{DSN: dsn, LockTimeout: 200 * time.Millisecond, Log: log})
	if err != nil {
		return nil, err
	}
	c := catalog.New(catalog.Options{DB: main, Background: reviews, Replica: uuid.New(), Log: log})
	m := &measure{main: main, reviews: reviews, catalog: c, gc: gc.New(gc.Options{Catalog: c, DB: main, Reviews: reviews}), batch: batch}
	return m, main.Pool.QueryRow(ctx, "SELECT count(*) FROM manifests").Scan(&m.filled)
}

func (m *measure) close() {
	m.reviews.Close()
	m.main.Close()
}

func (m *measure) exec(ctx context.Context, statements ...string) error {
	for _, sql := range statements {
		if _, err := m.main.Pool.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", strings.Join(strings.Fields(sql), " "), err)
		}
	}
	return nil
}

// run prepares a workload, and measures how fast one worker reviews the rows of its review
// queue. If the reviews delete what they review, run also measures one DELETE statement for as
// many manifests or blobs.
func (m *measure) run(ctx context.Context, out *tabwriter.Writer, size, sample int, w workload) error {
	if err := m.exec(ctx, m.statements(w.prepare, sample)...); err != nil {
		return err
	}
	start := time.Now()
	rows := 0
	for {
		r, err := m.gc.Review(ctx, gc.ReviewOptions{Kind: w.kind, Limit: m.batch})
		if err != nil {
			return err
		}
		if r.Claimed == 0 {
			break
		}
		if got := map[bool]int{true: r.Deleted, false: r.Kept}[w.deletes]; got != r.Claimed {
			return fmt.Errorf("of %d rows only %d were settled as expected: %+v", r.Claimed, got, r)
		}
		if err := m.gc.RecordActivity(ctx, gc.Activity{BlobsReviewed: int64(r.Claimed)}); err != nil {
			return err
		}
		rows += r.Claimed
	}
	rate := float64(rows) / time.Since(start).Seconds()
	if rows != sample {
		return fmt.Errorf("%d rows were reviewed, want %d", rows, sample)
	}
	limit := ""
	if w.limit != "" {
		if err := m.exec(ctx, m.statements(w.prepare, sample)...); err != nil {
			return err
		}
		start = time.Now()
		if err := m.exec(ctx, w.limit); err != nil {
			return err
		}
		limit = fmt.Sprintf("%.2f", rate*time.Since(start).Seconds()/float64(sample))
	}
	if err := m.exec(ctx, "TRUNCATE gc_blob_review_queue, gc_manifest_review_queue, gc_doomed_objects"); err != nil {
		return err
	}
	fmt.Fprintf(out, "%d\t%s\t%d\t%.0f\t%s\t\n", size, w.name, rows, rate, limit)
	return nil
}

// statements splits SQL text at semicolons into statements, and replaces the word SAMPLE in
// them by the number `sample`.
func (m *measure) statements(sql string, sample int) []string {
	sql = strings.ReplaceAll(sql, "SAMPLE", strconv.Itoa(sample))
	var list []string
	for s := range strings.SplitSeq(sql, ";") {
		if s = strings.TrimSpace(s); s != "" {
			list = append(list, s)
		}
	}
	return list
}
