// Package prune measures auto-pruning: how fast it deletes the tags of a namespace, how much
// it slows down pulls meanwhile, how much memory it needs, and what it costs to look at
// namespaces that have nothing to delete.
//
//	go run ./bench prune -tags 1000000 -repositories 1000
//
// It starts a PostgreSQL server in a directory that it removes afterwards, fills the database
// by SQL, and prunes as the registry does, with the registry's triggers and audit log. No blob
// has an object in a store.
package prune

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/bench/meter"
	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/builtinpg"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/catalog/browse"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/memory"
	"github.com/purser-registry/purser/internal/policy"
	"github.com/purser-registry/purser/internal/quota"
	"github.com/purser-registry/purser/internal/server"
	"github.com/purser-registry/purser/internal/server/distribution"
)

type settings struct {
	out                                                        io.Writer
	tags, repositories, keep, namespaces, rate, pushers, batch int
	quiet, idle                                                time.Duration
	equal, preview                                             bool
	entries                                                    int
	dir, rules                                                 string
}

// Run runs this scenario with the flags in args.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flag := flag.NewFlagSet("prune", flag.ContinueOnError)
	flag.SetOutput(stderr)
	s := settings{out: stdout}
	flag.IntVar(&s.tags, "tags", 1_000_000, "tags in the namespace")
	flag.IntVar(&s.repositories, "repositories", 1000, "repositories that they are in")
	flag.IntVar(&s.keep, "keep", 100, "newest tags that stay in each")
	flag.StringVar(&s.rules, "rules", "[]", "keep rules of the policy, as JSON; they must keep none but the newest tags")
	flag.IntVar(&s.namespaces, "namespaces", 10_000, "namespaces with a policy and nothing to do; 0 leaves this out")
	flag.IntVar(&s.rate, "pulls", 300, "pulls a second beside the pruning; 0: none")
	flag.IntVar(&s.pushers, "pushers", 0, "connections that push small images to another namespace meanwhile, as fast as they can")
	flag.IntVar(&s.batch, "batch", 0, "tags deleted in a transaction; 0: the default")
	flag.DurationVar(&s.quiet, "quiet", 20*time.Second, "how long pulls are measured without pruning")
	flag.DurationVar(&s.idle, "idle", 2*time.Minute, "how long namespaces with nothing to do are measured")
	flag.BoolVar(&s.equal, "equal", false, "don't let pruning and PostgreSQL's housekeeping give way to requests")
	flag.BoolVar(&s.preview, "preview", false, "measure previews and forecasts of the namespace, and nothing else")
	flag.IntVar(&s.entries, "entries", 10, "with -preview: entries in the audit log for each tag, a fifth of them pushes")
	flag.StringVar(&s.dir, "dir", "", "directory for the database; default the temporary directory")
	if err := flag.Parse(args); err != nil {
		return err
	}
	return run(ctx, s)
}

// bench is a registry that runs in this process, on a database of its own.
type bench struct {
	settings
	main, pruning *db.DB
	catalog       *catalog.Catalog
	url           string
	postmaster    int
	held          uint64 // of the heap, and never used
	log           *slog.Logger
}

func run(ctx context.Context, s settings) error {
	b := &bench{settings: s, log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))}
	base, err := os.MkdirTemp(s.dir, "purser-bench-prune-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(base) //nolint:errcheck // a leftover directory harms nobody
	pg, err := builtinpg.Start(ctx, builtinpg.Options{DataDir: filepath.Join(base, "postgres"), Background: !s.equal, Log: b.log})
	if err != nil {
		return err
	}
	defer pg.Stop(context.WithoutCancel(ctx)) //nolint:errcheck // nothing depends on it any more
	dsn := pg.DSN("purser")
	if b.postmaster, err = postmaster(base); err != nil {
		return err
	}
	if _, err := db.Migrate(ctx, dsn, db.MigrateOptions{Partitions: db.DefaultPartitions}); err != nil {
		return err
	}
	stop, err := b.serve(ctx, dsn, base)
	if err != nil {
		return err
	}
	defer stop()
	if s.preview {
		return b.forecasting(ctx)
	}
	if err := b.pruned(ctx); err != nil {
		return err
	}
	if s.namespaces == 0 {
		return nil
	}
	return b.idling(ctx)
}

// serve starts the registry.
func (b *bench) serve(ctx context.Context, dsn, base string) (stop func(), err error) {
	b.held = uint64(memory.HoldHeap())
	replica := uuid.New()
	foreground := func(pid uint32) {
		if err := builtinpg.Foreground(pid); err != nil {
			b.log.Warn("pruning doesn't give way to pulls", "error", err)
		}
	}
	o := db.Options{DSN: dsn, StatementTimeout: -1, Replica: replica.String(), Connected: foreground, Log: b.log}
	if b.main, err = db.Open(ctx, o); err != nil {
		return nil, err
	}
	if b.pruning, err = db.Open(ctx, db.Options{DSN: dsn, LockTimeout: 200 * time.Millisecond, Log: b.log}); err != nil {
		return nil, err
	}
	quotas := quota.New(quota.Options{DB: b.main, Log: b.log})
	b.catalog = catalog.New(catalog.Options{
		DB: b.main, Replica: replica, Quotas: quotas, Log: b.log,
	})
	store, err := blob.OpenDir(blob.DirOptions{Path: filepath.Join(base, "blobs")})
	if err != nil {
		return nil, err
	}
	handler, err := server.New(server.Options{Log: b.log})
	if err != nil {
		return nil, err
	}
	oci, err := distribution.New(distribution.Options{Server: handler, Catalog: b.catalog, Browser: browse.New(b.catalog), Quotas: quotas, Store: store, Log: b.log})
	if err != nil {
		return nil, err
	}
	handler.Mount(oci.Mount())
	if _, err := audit.NewPartitionManager(audit.PartitionOptions{DB: b.main, Log: b.log}).Update(ctx); err != nil {
		return nil, err
	}
	srv := httptest.NewServer(handler)
	b.url = srv.URL
	http.DefaultTransport.(*http.Transport).MaxIdleConnsPerHost = 64
	listening, end := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan error, 1)
	go func() { done <- b.catalog.Listen(listening) }()
	return func() {
		srv.Close()
		end()
		<-done //nolint:errcheck // the listener was told to end
		b.pruning.Close()
		b.main.Close()
	}, nil
}

// pruner creates the worker of auto-pruning and starts it in a goroutine. `stop` ends the
// worker and returns its error.
func (b *bench) pruner(ctx context.Context) (p *autoprune.Pruner, stop func() error, err error) {
	p, err = autoprune.New(autoprune.Options{DB: b.main, Background: b.pruning, Catalog: b.catalog, Batch: b.batch, Log: b.log})
	if err != nil {
		return nil, nil, err
	}
	working, end := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- p.Run(working) }()
	return p, func() error {
		end()
		return <-done
	}, nil
}

// pruned measures the pruning of one large namespace.
func (b *bench) pruned(ctx context.Context) error {
	start := time.Now()
	if err := b.fill(ctx); err != nil {
		return fmt.Errorf("filling: %w", err)
	}
	fmt.Fprintf(os.Stderr, "%d tags in %d repositories, filled in %s\n", b.tags, b.repositories, time.Since(start).Round(time.Second))
	pushesQuiet := b.pushes(ctx)
	before := b.quietPulls(ctx)
	pushesBefore, pushedBefore, err := pushesQuiet.end()
	if err != nil {
		return err
	}

	policy, err := policy.Parse(fmt.Appendf(nil, `{"method": "number_of_tags", "numTags": %d, "keep": %s}`, b.keep, b.rules))
	if err != nil {
		return err
	}
	p, stop, err := b.pruner(ctx)
	if err != nil {
		return err
	}
	runtime.GC()
	heap := meter.WatchHeap()
	beside, pushesBeside := b.pulls(ctx), b.pushes(ctx)
	clock, cpu := time.Now(), b.cpu()
	if _, err := p.Policies.Create(ctx, policies.Target{Namespace: "bench"}, policy); err != nil {
		return err
	}
	if err := p.RunNow(ctx, "bench"); err != nil {
		return err
	}
	run, err := b.ended(ctx, p)
	if err != nil {
		return err
	}
	took, used := time.Since(clock), b.cpu()-cpu
	during := beside.end()
	pushesDuring, pushedDuring, err := pushesBeside.end()
	if err != nil {
		return err
	}
	peak := heap() - b.held
	if err := stop(); err != nil {
		return err
	}
	if want := int64(b.tags - b.keep*b.repositories); run.State != "success" || run.Deleted != want {
		return fmt.Errorf("the run has deleted %d tags and not %d: %+v", run.Deleted, want, run)
	}
	fmt.Fprintf(b.out, "pruned %d of %d tags in %d repositories in %s: %.0f tags/s, %.2f cores of server and database, %.1f µs of them for a tag, peak heap %d MiB\n",
		run.Deleted, run.Tags, run.Repositories, took.Round(time.Millisecond), float64(run.Deleted)/took.Seconds(),
		used.Seconds()/took.Seconds(), float64(used.Microseconds())/float64(run.Deleted), peak>>20)
	if b.rate > 0 {
		fmt.Fprintf(b.out, "%d pulls/s:\n", b.rate)
		fmt.Fprintln(b.out, "  before", before)
		fmt.Fprintln(b.out, "  beside", during)
		after := b.quietPulls(ctx)
		fmt.Fprintln(b.out, "  after ", after)
		quiet := before.and(after)
		fmt.Fprintf(b.out, "  p99 beside is %.2f of that of both others, from when a pull was due; %.2f from when it was sent\n",
			during.due.Ratio(quiet.due, 99), during.sent.Ratio(quiet.sent, 99))
	}
	if b.pushers > 0 {
		fmt.Fprintf(b.out, "pushes by %d: %.0f/s p50 %s p95 %s p99 %s without, %.0f/s p50 %s p95 %s p99 %s beside\n", b.pushers,
			pushedBefore, pushesBefore.At(50), pushesBefore.At(95), pushesBefore.At(99),
			pushedDuring, pushesDuring.At(50), pushesDuring.At(95), pushesDuring.At(99))
	}
	return nil
}

// ended waits until the newest run of auto-pruning in the namespace has ended, and returns its
// summary.
func (b *bench) ended(ctx context.Context, p *autoprune.Pruner) (r autoprune.RunSummary, err error) {
	for {
		list, _, err := p.Runs(ctx, "bench", "", 1)
		if err != nil {
			return r, err
		}
		if len(list) > 0 && list[0].State != "running" {
			return list[0], nil
		}
		select {
		case <-ctx.Done():
			return r, ctx.Err()
		case <-time.After(200 * time.Millisecond): // asking more often would take CPU time
		}
	}
}

// idling measures the CPU time that the pruner and the database use for many namespaces whose
// policies select no tag.
func (b *bench) idling(ctx context.Context) error {
	if err := b.fillIdle(ctx); err != nil {
		return fmt.Errorf("filling: %w", err)
	}
	base := b.cpu()
	time.Sleep(b.idle / 4)
	without := (b.cpu() - base).Seconds() / (b.idle / 4).Seconds()
	_, stop, err := b.pruner(ctx)
	if err != nil {
		return err
	}
	clock, cpu := time.Now(), b.cpu()
	time.Sleep(b.idle)
	used := (b.cpu() - cpu).Seconds() / time.Since(clock).Seconds()
	if err := stop(); err != nil {
		return err
	}
	var seen int
	if err := b.main.Pool.QueryRow(ctx, "SELECT count(*) FROM autopruneruns WHERE namespace LIKE 'idle%'").Scan(&seen); err != nil {
		return err
	}
	fmt.Fprintf(b.out, "%d namespaces with nothing to do: %.2f%% of a core with pruning, %.2f%% without; %d of them were gone through in %s\n",
		b.namespaces, 100*used, 100*without, seen, time.Since(clock).Round(time.Second))
	return nil
}
