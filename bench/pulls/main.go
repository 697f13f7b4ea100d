// Package pulls measures the counting of pulls: how fast a process sends pulls to Redis, how
// much memory Redis needs for them, how fast the flush worker adds them to the statistics, and
// how much memory the flush worker needs. For comparison it measures how fast the sync worker
// counts pulls from the audit log.
//
//	go run ./bench pulls -keys 1000000
//
// It starts a PostgreSQL server and a Redis server in a directory that it removes afterwards.
// It doesn't measure how much counting slows down pulls: for that, run the scenario registries
// against servers with different settings, as README.md describes.
package pulls

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/purser-registry/purser/bench/meter"
	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/builtinpg"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/pullstats"
	"github.com/purser-registry/purser/internal/pullstats/redispulls"
	"github.com/purser-registry/purser/internal/pullstats/statsdb"
)

type settings struct {
	out                                io.Writer
	keys, repositories, batch, entries int
	dir                                string
}

// Run runs this scenario with the flags in args.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flag := flag.NewFlagSet("pulls", flag.ContinueOnError)
	flag.SetOutput(stderr)
	s := settings{out: stdout}
	flag.IntVar(&s.keys, "keys", 1_000_000, "keys in Redis: tags with a manifest each")
	flag.IntVar(&s.repositories, "repositories", 10_000, "repositories that they are in")
	flag.IntVar(&s.batch, "batch", 1000, "keys, or entries of the log, that are counted in a transaction")
	flag.IntVar(&s.entries, "entries", 300_000, "entries of the audit log; 0 leaves this out")
	flag.StringVar(&s.dir, "dir", "", "directory for the databases; default the temporary directory")
	if err := flag.Parse(args); err != nil {
		return err
	}
	return run(ctx, s)
}

// bench has the database, the Redis and the settings of a measurement. The recorder and the
// workers that are measured run in this process.
type bench struct {
	settings
	db    *db.DB
	redis *redispulls.Client
	where statsdb.Databases
	url   string
	ids   []int64
	log   *slog.Logger
}

func run(ctx context.Context, s settings) error {
	b := &bench{settings: s, log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))}
	base, err := os.MkdirTemp(s.dir, "purser-bench-pulls-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(base) //nolint:errcheck // a leftover directory harms nobody
	pg, err := builtinpg.Start(ctx, builtinpg.Options{DataDir: filepath.Join(base, "postgres"), Log: b.log})
	if err != nil {
		return err
	}
	defer pg.Stop(context.WithoutCancel(ctx)) //nolint:errcheck // nothing depends on it any more
	if _, err := db.Migrate(ctx, pg.DSN("purser"), db.MigrateOptions{Partitions: db.DefaultPartitions}); err != nil {
		return err
	}
	if _, err := db.MigrateStats(ctx, pg.DSN("purser"), db.MigrateOptions{}); err != nil {
		return err
	}
	if b.db, err = db.Open(ctx, db.Options{DSN: pg.DSN("purser"), StatementTimeout: -1, Log: b.log}); err != nil {
		return err
	}
	defer b.db.Close()
	b.where = statsdb.Databases{Log: b.db, Stats: b.db, Alive: catalog.LivingNamespaces}
	if err := b.fill(ctx); err != nil {
		return err
	}
	stop, err := b.startRedis(base)
	if err != nil {
		return err
	}
	defer stop()
	if b.redis, err = redispulls.NewClient(b.url, b.db); err != nil {
		return err
	}
	defer b.redis.Close() //nolint:errcheck // the server ends as well
	if err := b.flushing(ctx); err != nil || s.entries == 0 {
		return err
	}
	return b.reading(ctx)
}

// fill makes repositories.
func (b *bench) fill(ctx context.Context) error {
	if _, err := b.db.Pool.Exec(ctx, "INSERT INTO top_level_namespaces (name) VALUES ('bench')"); err != nil {
		return err
	}
	rows, err := b.db.Pool.Query(ctx, `
		INSERT INTO repositories (top_level_namespace_id, path)
		SELECT n.id, 'bench/r' || i FROM top_level_namespaces n, generate_series(1, $1::int) AS i RETURNING id`, b.repositories)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return err
		}
		b.ids = append(b.ids, id)
	}
	return rows.Err()
}

// startRedis starts a Redis server with the settings that the documentation recommends: it
// keeps an append-only file and no snapshots.
func (b *bench) startRedis(base string) (stop func(), err error) {
	socket := filepath.Join(base, "redis.sock")
	cmd := exec.Command("redis-server", "--port", "0", "--unixsocket", socket, "--save", "", "--appendonly", "yes", "--dir", base)
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting redis-server: %w", err)
	}
	b.url = "unix://" + socket
	stop = func() {
		cmd.Process.Kill() //nolint:errcheck // it may have ended
		cmd.Wait()         //nolint:errcheck // by the signal
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			return stop, conn.Close()
		}
		if time.Now().After(deadline) {
			stop()
			return nil, fmt.Errorf("redis-server doesn't answer: %w", err)
		}
	}
}

// pull returns the audit log's entry for pull number n. The pulls go through the tags in turn,
// so each tag is pulled once before any tag is pulled again.
func (b *bench) pull(n int) audit.Entry {
	n %= b.keys
	return audit.Entry{
		Kind: audit.PullRepo, Address: "192.0.2.1", UserAgent: "containerd/2.1", RequestID: "0123456789abcdef",
		Repository: fmt.Sprintf("bench/r%d", n%b.repositories+1), RepositoryID: b.ids[n%b.repositories],
		Tag: fmt.Sprintf("v1.%d.0", n/b.repositories), Digest: oci.Compute(oci.SHA256, []byte(fmt.Sprint(n))),
	}
}

// recorder returns a recorder that sends all pulls to Redis and writes none to the audit log.
func (b *bench) recorder() (*pullstats.Recorder, error) {
	lastUsed, err := pullstats.NewLastUsedRecorder(pullstats.LastUsedOptions{Databases: b.where, Log: b.log})
	if err != nil {
		return nil, err
	}
	return pullstats.NewRecorder(pullstats.RecorderOptions{Count: true, Redis: b.redis, LastUsed: lastUsed, Buffer: 2 * b.keys, Logger: b.log}), nil
}

// flushing pulls each tag once, through Redis, and measures how fast the flush worker adds
// these pulls to the statistics. It does so twice: the first time the worker inserts the rows
// of the statistics, the second time it updates them.
func (b *bench) flushing(ctx context.Context) error {
	reg := prometheus.NewRegistry()
	metrics := redispulls.NewMetrics(reg)
	worker, err := redispulls.NewFlushWorker(redispulls.FlushOptions{Databases: b.where, Redis: b.redis, Batch: b.batch, Logger: b.log, Metrics: metrics})
	if err != nil {
		return err
	}
	if err := worker.Flush(ctx); err != nil { // it is there
		return err
	}
	before, err := worker.Status(ctx)
	if err != nil {
		return err
	}
	for round, name := range []string{"new rows", "rows that are there"} {
		r, err := b.recorder()
		if err != nil {
			return err
		}
		start := time.Now()
		for n := range b.keys {
			r.Pulled(ctx, b.pull(n))
		}
		taken := time.Since(start)
		r.Close(ctx)
		sent := time.Since(start)
		status, err := worker.Status(ctx)
		if err != nil {
			return err
		}
		if round == 0 {
			fmt.Fprintf(b.out, "%d pulls of as many keys: %s each to be taken, %.0f/s given to Redis\n", b.keys, (taken / time.Duration(b.keys)).Round(10*time.Nanosecond), float64(b.keys)/sent.Seconds())
			fmt.Fprintf(b.out, "memory of Redis: %d bytes a key\n", (status.Memory-before.Memory)/int64(b.keys))
		}
		runtime.GC()
		peak := meter.WatchHeap()
		start = time.Now()
		if err := worker.Flush(ctx); err != nil {
			return err
		}
		took := time.Since(start)
		batch, transaction, err := meanTimes(reg)
		if err != nil {
			return err
		}
		fmt.Fprintf(b.out, "flushed, %s: %.0f keys/s, heap %d MiB at most; so far %s for a batch of %d, %s of it in the transaction\n", name,
			float64(b.keys)/took.Seconds(), peak()>>20, batch, b.batch, transaction)
		if err := b.check(ctx, int64(round+1)); err != nil {
			return err
		}
	}
	start := time.Now()
	if err := worker.Flush(ctx); err != nil {
		return err
	}
	fmt.Fprintf(b.out, "a flush right after, of %d keys with nothing to count that have not expired: %s\n", b.keys, time.Since(start).Round(time.Millisecond))
	return nil
}

// meanTimes returns the mean duration of a batch of the flush worker, and that of the database
// transaction within the batch, as the worker's metrics have them.
func meanTimes(reg *prometheus.Registry) (batch, transaction time.Duration, err error) {
	families, err := reg.Gather()
	if err != nil {
		return 0, 0, err
	}
	mean := func(name string) time.Duration {
		for _, f := range families {
			if h := f.GetMetric()[0].GetHistogram(); f.GetName() == name && h.GetSampleCount() > 0 {
				return time.Duration(h.GetSampleSum() / float64(h.GetSampleCount()) * float64(time.Second)).Round(100 * time.Microsecond)
			}
		}
		return 0
	}
	return mean("purser_redis_flush_batch_duration_seconds"), mean("purser_redis_flush_upsert_duration_seconds"), nil
}

// check returns an error unless the statistics have every tag and every manifest, each with
// the count `times`.
func (b *bench) check(ctx context.Context, times int64) error {
	var rows, pulls, manifests int64
	err := b.db.Pool.QueryRow(ctx, `
		SELECT count(*), sum(tag_pull_count)::bigint, (SELECT sum(total_pull_count)::bigint FROM manifestpullstatistics)
		FROM tagpullstatistics`).Scan(&rows, &pulls, &manifests)
	if err != nil {
		return err
	}
	if n := int64(b.keys); rows != n || pulls != n*times || manifests != n*times {
		return fmt.Errorf("%d tags with %d pulls, and %d of manifests; there should be %d with %d", rows, pulls, manifests, n, n*times)
	}
	return nil
}

// reading writes pulls into the audit log and measures how fast the sync worker counts them
// from there.
func (b *bench) reading(ctx context.Context) error {
	if _, err := audit.NewPartitionManager(audit.PartitionOptions{DB: b.db, Log: b.log}).Update(ctx); err != nil {
		return err
	}
	log := audit.NewRecorder(audit.RecorderOptions{DB: b.db, Buffer: b.entries, Log: b.log})
	start := time.Now()
	for n := range b.entries {
		if !log.Record(ctx, b.pull(n)) {
			return errors.New("an entry found no room")
		}
	}
	if err := log.Close(ctx); err != nil {
		return err
	}
	fmt.Fprintf(b.out, "%d pulls written to the audit log: %.0f/s\n", b.entries, float64(b.entries)/time.Since(start).Seconds())
	worker, err := pullstats.NewSyncWorker(pullstats.SyncOptions{Databases: b.where, Batch: b.batch, Logger: b.log})
	if err != nil {
		return err
	}
	start = time.Now()
	if err := worker.Sync(ctx); err != nil {
		return err
	}
	took := time.Since(start)
	s, err := worker.Status(ctx)
	if err != nil {
		return err
	}
	if s.Counted != int64(b.entries) {
		return fmt.Errorf("%d of %d entries were counted", s.Counted, b.entries)
	}
	fmt.Fprintf(b.out, "counted from there: %.0f/s\n", float64(b.entries)/took.Seconds())
	return nil
}
