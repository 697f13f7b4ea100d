package gc

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/bench/meter"
	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/builtinpg"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// pushes measures the SQL of pushes. No blob has an object in a store.
type pushes struct {
	out     io.Writer
	db      *db.DB
	catalog *catalog.Catalog
	meter   *meter.Meter
	rounds  int
	window  time.Duration
	number  atomic.Int64 // of images
}

// Triggers runs the scenario triggers with the flags in args.
func Triggers(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flag := flag.NewFlagSet("triggers", flag.ContinueOnError)
	flag.SetOutput(stderr)
	p := &pushes{out: stdout, meter: meter.New(meter.Proc{Root: "/proc"}, []int{os.Getpid()})}
	flag.IntVar(&p.rounds, "rounds", 9, "windows with the triggers, and as many without")
	flag.DurationVar(&p.window, "d", 2*time.Second, "time of one window")
	connections := flag.String("c", "1,8", "numbers of clients that push at once, comma-separated")
	dir := flag.String("dir", "", "directory for the database; default the temporary directory")
	if err := flag.Parse(args); err != nil {
		return err
	}
	var clients []int
	for text := range strings.SplitSeq(*connections, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return fmt.Errorf("-c: %q is no number of clients", text)
		}
		clients = append(clients, n)
	}
	if p.rounds < 1 || p.window <= 0 {
		return errors.New("-rounds and -d must be greater than 0")
	}
	return p.run(ctx, *dir, clients)
}

func (p *pushes) run(ctx context.Context, dir string, clients []int) error {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	base, err := os.MkdirTemp(dir, "purser-bench-triggers-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(base) //nolint:errcheck // a leftover directory harms nobody
	pg, err := builtinpg.Start(ctx, builtinpg.Options{DataDir: filepath.Join(base, "postgres"), Log: log})
	if err != nil {
		return err
	}
	defer pg.Stop(context.WithoutCancel(ctx)) //nolint:errcheck // nothing depends on it any more
	if _, err := db.Migrate(ctx, pg.DSN("purser"), db.MigrateOptions{Partitions: db.DefaultPartitions}); err != nil {
		return err
	}
	replica := uuid.New()
	if p.db, err = db.Open(ctx, db.Options{DSN: pg.DSN("purser"), StatementTimeout: -1, Replica: replica.String(), Log: log}); err != nil {
		return err
	}
	defer p.db.Close()
	if _, err := audit.NewPartitionManager(audit.PartitionOptions{DB: p.db, Log: log}).Update(ctx); err != nil {
		return err
	}
	p.catalog = catalog.New(catalog.Options{DB: p.db, Replica: replica, Log: log})
	listening, end := context.WithCancel(ctx)
	var listener sync.WaitGroup
	listener.Go(func() { p.catalog.Listen(listening) }) //nolint:errcheck // without caches, both kinds of windows have more queries
	defer listener.Wait()
	defer end()
	for _, n := range clients {
		if err := p.compare(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// pushFigures are the results of the windows of one kind.
type pushFigures struct {
	rate, cpu []float64 // images per second; µs of PostgreSQL per image
	took      meter.Latencies
}

// compare measures windows with and without the triggers in turn, with n clients.
func (p *pushes) compare(ctx context.Context, n int) error {
	var found [2]pushFigures // without, with
	for round := range p.rounds + 1 {
		for i := range found {
			kind := (i + round) % 2 // each comes first in turn
			f := &found[kind]
			if round == 0 {
				f = new(pushFigures) // fills caches
			}
			if err := p.enable(ctx, kind == 1); err != nil {
				return err
			}
			if err := p.measure(ctx, n, p.window/10, new(pushFigures)); err != nil { // plans the statements anew
				return err
			}
			if err := p.measure(ctx, n, p.window, f); err != nil {
				return err
			}
		}
	}
	var slower, cpu []float64
	for i := range p.rounds {
		slower = append(slower, found[0].rate[i]/found[1].rate[i])
		cpu = append(cpu, found[1].cpu[i]/found[0].cpu[i])
	}
	for i, name := range []string{"without", "with"} {
		f := &found[i]
		slices.Sort(f.took)
		rate := meter.NewSpread(f.rate)
		fmt.Fprintf(p.out, "%2d clients, %-7s %6.0f images/s (%.0f to %.0f), %4.0f µs CPU of PostgreSQL, %s\n",
			n, name, rate.Median, rate.Min, rate.Max, meter.NewSpread(f.cpu).Median, f.took)
	}
	fmt.Fprintf(p.out, "%2d clients, with the triggers: time of a push %s, CPU time of PostgreSQL %s\n", n, ratios(slower), ratios(cpu))
	return nil
}

func ratios(list []float64) string {
	slices.Sort(list)
	return fmt.Sprintf("times %.2f (median of %d pairs of windows; quartiles %.2f and %.2f)",
		meter.NewSpread(list).Median, len(list), list[len(list)/4], list[len(list)*3/4])
}

// enable switches the triggers that fill the review queues, and those that record which
// manifests use a blob, on or off. No push may be under way.
func (p *pushes) enable(ctx context.Context, on bool) error {
	word := "DISABLE"
	if on {
		word = "ENABLE"
	}
	var n int
	err := p.db.Pool.QueryRow(ctx, "SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'gc\\_track\\_%'").Scan(&n)
	if err == nil && n == 0 {
		err = errors.New("there are no triggers of garbage collection")
	}
	if err != nil {
		return err
	}
	_, err = p.db.Pool.Exec(ctx, `
		DO $$
		DECLARE t record;
		BEGIN
			FOR t IN SELECT tgrelid::regclass AS tbl, tgname FROM pg_trigger WHERE tgname LIKE 'gc\_track\_%' LOOP
				EXECUTE format('ALTER TABLE ONLY %s `+word+` TRIGGER %I', t.tbl, t.tgname);
			END LOOP;
		END;
		$$`)
	return err
}

// measure pushes from n clients, each to a repository of its own, for the time `window`.
func (p *pushes) measure(ctx context.Context, n int, window time.Duration, f *pushFigures) error {
	var mu sync.Mutex
	var failed error
	var took []time.Duration
	var wg sync.WaitGroup
	before, begin := p.meter.Now(false), time.Now()
	for i := range n {
		wg.Go(func() {
			var mine []time.Duration
			var err error
			for start := begin; err == nil && start.Sub(begin) < window; start = time.Now() {
				err = p.push(ctx, fmt.Sprintf("bench/r%d", i))
				mine = append(mine, time.Since(start))
			}
			mu.Lock()
			defer mu.Unlock()
			took, failed = append(took, mine...), errors.Join(failed, err)
		})
	}
	wg.Wait()
	elapsed, after := time.Since(begin), p.meter.Now(false)
	if failed != nil {
		return failed
	}
	if !before.Known || !after.Known {
		return errors.New("the CPU time of PostgreSQL is unknown")
	}
	f.rate = append(f.rate, float64(len(took))/elapsed.Seconds())
	f.cpu = append(f.cpu, float64((after.Database-before.Database).Microseconds())/float64(len(took)))
	f.took = append(f.took, took...)
	return nil
}

// push pushes an image of a configuration and three layers that no other image has, under a new
// tag: one commit starts the four uploads, each is committed as a blob, and the manifest is put.
func (p *pushes) push(ctx context.Context, repository string) error {
	uploads, err := p.catalog.StartUploads(ctx, catalog.StartOptions{N: 4})
	if err != nil {
		return err
	}
	const size, media = 10 << 10, "application/vnd.oci.image."
	var blobs []string
	for _, u := range uploads {
		d := oci.Compute(oci.SHA256, []byte(rand.Text()))
		u.Repository, u.Size = repository, size
		if err := p.catalog.CommitUpload(ctx, u, d, fmt.Sprintf("%s-%d", u.StorageKey, u.Ticket), false); err != nil {
			return err
		}
		kind := "layer.v1.tar"
		if len(blobs) == 0 {
			kind = "config.v1+json"
		}
		blobs = append(blobs, fmt.Sprintf(`{"mediaType": %q, "digest": %q, "size": %d}`, media+kind, d, size))
	}
	payload := fmt.Appendf(nil, `{"schemaVersion": 2, "mediaType": %q, "config": %s, "layers": [%s]}`,
		media+"manifest.v1+json", blobs[0], strings.Join(blobs[1:], ", "))
	m, err := oci.ParseManifest("", payload)
	if err != nil {
		return err
	}
	return p.catalog.PutManifest(ctx, catalog.NewManifest{
		Repository: repository, Digest: oci.Compute(oci.SHA256, payload), Manifest: m, Payload: payload,
		Tags: []string{fmt.Sprintf("v%d", p.number.Add(1))},
	})
}
