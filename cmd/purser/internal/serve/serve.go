// Package serve implements the command serve, which runs the registry. serve.go starts and
// stops the server, and assemble.go makes it from its parts. Each other file makes one part, such
// as the listeners, the database pools or the pull statistics.
//
// # Decisions
//
// The listener of the registry is served from the first moment of a start (entrance). Requests wait
// for quick starts, as clients of a socket that systemd keeps do, and are refused as soon as
// something is known to be away.
//
// Metrics run the checks of /readyz when they are read. A database that is away while no client
// asks fails no request, so counters of failures say nothing.
//
// All packages register metrics where they are made, by promauto. It panics if a metric is
// registered twice, which only a mistake in the program can cause.
package serve

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/purser-registry/purser/cmd/purser/internal/backend"
	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/memory"
	"github.com/purser-registry/purser/internal/worker"
)

func Command(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the registry",
		Long: "Run the registry. Without further settings it keeps its metadata in a PostgreSQL of its own\n" +
			"and its blobs in the data directory. An interrupt lets requests end, then stops it; a second\n" +
			"one stops it at once. SIGHUP reads the certificate and log.level again. systemd can pass it\n" +
			"the socket to listen on, and is told when it is ready.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			host, err := newManager(src.Environ)
			if err != nil {
				return err
			}
			host.replace(src)
			cfg, err := src.Load(cmd)
			if err := backend.CheckSettings(cmd.Context(), cfg, err); err != nil {
				return err
			}
			line := command.NewProgressLine(cmd.ErrOrStderr())
			log, level, err := command.NewLeveledLogger(logOutput(line, cmd.ErrOrStderr()), cfg.Log)
			if err != nil {
				return err
			}
			log.Info("starting", "version", command.ReadBuild().Version, "configuration", src.Used(cmd))
			memory.HoldHeap()
			memory.SetLimit(cfg.Database.Main == "")
			load := func() (*config.Config, error) { return src.Load(cmd) }
			host.log = log
			reload := &reloader{load: load, running: cfg, level: level, log: log}
			err = run(cmd.Context(), cfg, log, reload, host, line, announcer(cmd.OutOrStdout(), cfg))
			if cmd.Context().Err() != nil && errors.Is(err, context.Canceled) {
				return nil // interrupted before the server was ready
			}
			return err
		},
	}
	command.AddServeFlags(cmd.Flags())
	return cmd
}

// Run starts the server's parts one after another, announces on `out` that the server is
// ready, serves until ctx ends, and stops the parts in reverse order. If `reload` is nil,
// SIGHUP keeps its default effect: it ends the process.
func Run(ctx context.Context, cfg *config.Config, out io.Writer, log *slog.Logger, reload *reloader) error {
	return run(ctx, cfg, log, reload, nil, nil, announcer(out, cfg))
}

// RunFor is like Run, for a program that uses the registry itself: instead of announcing that
// the server is ready, it calls `ready` with the registry's URL. `ready` must return at once. If
// `line` isn't nil and on a terminal, it shows what the start is doing.
func RunFor(ctx context.Context, cfg *config.Config, log *slog.Logger, line *command.ProgressLine, ready func(url string)) error {
	return run(ctx, cfg, log, nil, nil, line, func(s *sockets, _ access) error {
		ready(s.url())
		return nil
	})
}

// run is Run with `announce`, which announces that the server is ready; `host`, the service manager, nil if
// there is none; and `line`, which shows what the start is doing, nil if nobody looks.
func run(ctx context.Context, cfg *config.Config, log *slog.Logger, reload *reloader, host *manager, line *command.ProgressLine, announce func(*sockets, access) error) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	socks, err := listen(ctx, cfg.HTTP, host, log)
	if err != nil {
		return err
	}
	defer socks.close()
	waitForHangups := reload.handle(ctx, socks.cert, stop)
	defer func() { stop(); waitForHangups() }()
	tracing, stopTracing, err := startTracing(ctx, log)
	if err != nil {
		return err
	}
	defer stopTracing()
	reg, ready := newRegistry(), newReadiness()
	reg.MustRegister(ready)
	limits, err := newLimits(cfg, reg, log)
	if err != nil {
		return err
	}
	limits.bound(socks)
	useControl, stopDebug := serveOperators(socks, cfg.HTTP, reg, ready, log)
	defer stopDebug()
	door := newEntrance(socks, cfg.HTTP, log)
	defer door.close()
	stopChallenges := socks.serveChallenges(cfg.HTTP, log)
	defer stopChallenges()
	go door.tell(ctx, ready, log)
	hideSteps := showSteps(line, ready)
	defer hideSteps()
	ctx = backend.TellWaits(ctx, func(what string) {
		ready.waits(what)
		door.refuse()
	})
	ctx = backend.TellSteps(ctx, ready.waits)
	return starting{socks, door, ready, limits, reg, tracing, useControl, host, log}.run(ctx, cfg, func(s *sockets, a access) error {
		hideSteps()
		return announce(s, a)
	})
}

// starting is a server that has its listeners, and neither its databases nor its blob store yet.
type starting struct {
	socks      *sockets
	door       *entrance
	ready      *readiness
	limits     *limits
	metrics    *prometheus.Registry
	tracing    bool
	useControl func(*auth.Control) // lets the operators' pages ask for log-ins
	host       *manager            // nil: there is none
	log        *slog.Logger
}

// run opens the rest and serves.
func (s starting) run(ctx context.Context, cfg *config.Config, announce func(*sockets, access) error) error {
	data, err := s.openData(ctx, cfg)
	if err != nil {
		return err
	}
	defer data.close()
	p := dependencies{
		db: data.pools.metadata, reviews: data.pools.reviews, prunes: data.pools.prunes, checks: data.pools.checks, keys: data.pools.keys, store: data.store,
		loops: data.loops, replica: data.replica, metrics: s.metrics, log: s.log, tracing: s.tracing,
		hosts: hosts(s.socks.registry, cfg.HTTP.Addr, cfg.HTTP), limits: s.limits, disks: data.disks,
	}
	if err := p.open(cfg); err != nil {
		return err
	}
	defer p.pulls.close()
	handler, workers, err := assemble(ctx, cfg, p)
	if err != nil {
		return err
	}
	s.useControl(handler.access.control)
	certificates, err := s.socks.openCertificates(cfg, p)
	if err != nil {
		return err
	}
	// Workers that begin at once find that the clocks were looked at, so none looks in a transaction.
	if err := p.clocks.Check(ctx); err != nil && !errors.Is(err, worker.ErrRest) {
		s.log.WarnContext(ctx, "the clocks can't be looked at yet", "error", err)
	}
	background := append(slices.Concat(data.workers, workers, certificates), s.host.watch)

	s.ready.started(databaseCheck(p.db.Rights, cfg.Auth.Enabled), storageCheck(p.store.Check),
		pushesCheck(p.store.Check, p.disks.Room, lacking(p.db.Rights)),
		readinessCheck{name: "statistics", run: statisticsCheck(data.pools.stats, p), spare: true})
	warnPlain(cfg, s.socks, s.log)
	if err := p.pulls.open(ctx); err != nil {
		// The registry starts without its statistics too. Their workers try again, and the first
		// pulls wait for that for some seconds.
		s.log.WarnContext(ctx, "others can't be told yet whether this process takes note of pulls", "error", err)
	}
	defer data.record.Stopped()
	return serve(ctx, cfg, handler, s.door, background, s.ready, func() error { return announce(s.socks, handler.access) }, s.host, s.log)
}

// serve serves requests and runs the background functions until ctx ends, or until the HTTP
// server or one of these functions fails. It calls announce once requests are answered, since
// clients may send requests as soon as they see the announcement. In the end it lets requests finish, within
// http.drain_timeout. It stops the background functions only after that, because requests
// depend on them.
func serve(ctx context.Context, cfg *config.Config, handler *site, door *entrance,
	background []func(context.Context) error, ready *readiness, announce func() error, host *manager, log *slog.Logger,
) error {
	work, stopWork := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWork()
	group, groupCtx := errgroup.WithContext(work)
	for _, fn := range background {
		group.Go(func() error { return fn(groupCtx) })
	}
	door.open(handler)
	group.Go(door.wait)
	group.Go(announce)
	host.ready(door.socks.url())
	group.Go(func() error {
		defer stopWork()
		select {
		case <-ctx.Done():
			log.Info("stopping: requests may end", "drain_timeout", cfg.HTTP.DrainTimeout)
		case <-groupCtx.Done():
		}
		ready.stopping()
		host.stopping()
		drain(door.srv, door.socks, door.silent, cfg.HTTP.DrainTimeout, log)
		if err := handler.close(); err != nil {
			log.Warn("deleting the uploads that were made ahead failed; the reaper deletes them later", "error", err)
		}
		return nil
	})
	err := group.Wait()
	if err == nil {
		log.Info("stopped serving")
	}
	return err
}

func listenAndServe(srv *http.Server, socks *sockets) error {
	if socks.cert != nil {
		return srv.ServeTLS(socks.registry, "", "")
	}
	return srv.Serve(socks.registry)
}
