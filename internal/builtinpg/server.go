//go:build unix

package builtinpg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/memory"
)

// deathSignal is the signal that the kernel sends to PostgreSQL when this process dies. SIGQUIT
// makes PostgreSQL stop immediately, without a checkpoint, for which a start that follows at
// once would have to wait. Nothing is lost, since committed data is in the WAL.
const deathSignal = syscall.SIGQUIT

// partingTime is how long Stop waits for clients to close their connections before it ends
// the remaining ones.
const partingTime = 2 * time.Second

// defaultSettings are PostgreSQL settings for a small machine that the server shares with its
// client. Options.Settings can override them.
var defaultSettings = map[string]string{
	"autovacuum":       "on",
	"cluster_name":     "purser",
	"full_page_writes": "on",
	"jit":              "off", // the queries are short
	"log_checkpoints":  "off",
	// PostgreSQL doesn't log the text of failing statements, since a statement may be a page
	// long and contain a client's data. The logged message says what failed, and the client
	// gets the error.
	"log_min_error_statement": "panic",
	"log_timezone":            "UTC",
	"max_connections":         "100",
	// With 0, PostgreSQL doesn't start the process that launches logical replication, which
	// nobody uses here.
	"max_logical_replication_workers": "0",
	"max_wal_size":                    "2GB", // after each checkpoint the first change of a page logs the whole page
	"random_page_cost":                "1.1", // for solid-state disks
	"synchronous_commit":              "on",
	"timezone":                        "UTC",
	"wal_compression":                 "on",
}

// fixedSettings are settings that this package relies on, so Options.Settings can't override
// them.
var fixedSettings = map[string]string{
	"lc_messages":             "C",
	"listen_addresses":        "",
	"log_destination":         "stderr",
	"log_line_prefix":         logPrefix,
	"logging_collector":       "off",
	"port":                    socketPort,
	"unix_socket_permissions": "0700",
}

// Server is a running PostgreSQL that this process owns.
type Server struct {
	log       *slog.Logger
	dataDir   string
	cluster   string
	socketDir string
	lock      *lock
	cmd       *exec.Cmd
	output    *logSink

	stopping atomic.Bool
	done     chan struct{} // closed after the process has exited and err is set
	err      error

	endReaper   chan struct{}
	reaper      sync.WaitGroup
	releaseOnce sync.Once
	releaseErr  error
}

// Start starts a server on a data directory, which it creates if necessary. It returns when
// the server accepts connections and has a database named purser. It fails with ErrInUse if
// another process, or another Server of this process, holds the directory's lock. ctx only
// limits the start; the server runs until Stop or the end of this process.
func Start(ctx context.Context, o Options) (*Server, error) {
	o.Log = cmp.Or(o.Log, slog.Default())
	return start(ctx, o, newFinder(o))
}

func start(ctx context.Context, o Options, find *finder) (*Server, error) {
	if o.Step == nil {
		o.Step = func(string) {}
	}
	if _, err := os.Stat(filepath.Join(o.DataDir, clusterName)); o.Existing && errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s", ErrNoCluster, o.DataDir)
	}
	dataDir, err := prepareDataDir(o.DataDir)
	if err != nil {
		return nil, err
	}
	s := &Server{
		log:       o.Log,
		dataDir:   dataDir,
		cluster:   filepath.Join(dataDir, clusterName),
		output:    newLogSink(o.Log),
		done:      make(chan struct{}),
		endReaper: make(chan struct{}),
	}
	if s.lock, err = acquire(dataDir); err != nil {
		return nil, err
	}
	if o.Begin != nil {
		o.Begin()
	}
	if err := s.bringUp(ctx, o, find); err != nil {
		return nil, errors.Join(err, s.release())
	}
	if err := s.becomeReady(ctx); err != nil {
		stopCtx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		return nil, errors.Join(err, s.Stop(stopCtx))
	}
	return s, nil
}

// bringUp prepares the data directory and launches the server.
func (s *Server) bringUp(ctx context.Context, o Options, find *finder) error {
	if err := s.lock.publish(""); err != nil {
		return err
	}
	acct, err := pickAccount(s.cluster)
	if err != nil {
		return err
	}
	if err := stopStale(ctx, s.log, s.cluster); err != nil {
		return err
	}
	if err := removeSocketDir(s.lock.socketDir, s.cluster); err != nil {
		s.log.WarnContext(ctx, "removing the socket of the previous server failed", "err", err)
	}
	removeHalfDone(ctx, s.log, s.dataDir)
	major, err := clusterMajor(s.cluster)
	if err != nil {
		return err
	}
	if major == 0 {
		if old, err := OldClusters(s.dataDir); err != nil || len(old) > 0 {
			return errors.Join(err, fmt.Errorf("there is no cluster in %s, but %s: an upgrade was interrupted; run \"purser postgres upgrade\" again", s.dataDir, strings.Join(old, ", ")))
		}
	}
	bin, err := find.find(ctx, acct, s.cluster, cmp.Or(major, o.Major))
	if err != nil {
		return err
	}
	if major == 0 {
		o.Step("making its cluster")
		if err := initialise(ctx, s.log, bin, acct, s.dataDir, o.Settings["fsync"] != "off"); err != nil {
			return err
		}
	} else if err := takeOver(s.cluster, acct); err != nil {
		return err
	}
	if err := writeAccess(ctx, s.log, s.cluster, acct, o.AnyRole); err != nil {
		return err
	}
	if s.socketDir, err = makeSocketDir(s.dataDir, s.cluster, acct); err != nil {
		return err
	}
	if err := s.lock.publish(s.socketDir); err != nil {
		return err
	}
	o.Step("starting it")
	return s.launch(bin, acct, o)
}

// takeOver makes the account `acct` the owner of the cluster if the cluster belongs to another
// user, for example to root because root has restored a backup.
func takeOver(cluster string, acct *account) error {
	fi, err := os.Stat(cluster)
	if err != nil {
		return fmt.Errorf("reading the cluster: %w", err)
	}
	if acct == nil || fi.Sys().(*syscall.Stat_t).Uid == acct.uid {
		return nil
	}
	return acct.own(cluster)
}

// launch starts the postgres program, and a goroutine (run) that waits until the program has
// ended.
func (s *Server) launch(bin binaries, acct *account, o Options) error {
	cmd := exec.Command(filepath.Join(bin.dir, "postgres"), s.arguments(o.Settings)...)
	prepare(cmd, acct, deathSignal)
	held, err := onCluster(cmd, acct, s.cluster)
	if err != nil {
		return err
	}
	defer held.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("making a pipe for PostgreSQL's log: %w", err)
	}
	cmd.Stdout, cmd.Stderr = w, w
	s.cmd = cmd

	started := make(chan error, 1)
	go s.run(started, r)
	err = <-started
	w.Close()
	if err != nil {
		r.Close()
		return fmt.Errorf("starting %s as %s: %w", cmd.Path, acct, err)
	}
	if o.Background { // the server has no children yet; they will inherit the time slice
		if err := background(cmd.Process.Pid); err != nil {
			s.log.Debug("lowering the priority of PostgreSQL's background processes failed", "error", err)
		}
	}
	if os.Getpid() == 1 {
		s.reaper.Go(func() { reapOrphans(s.endReaper, cmd.Process.Pid) })
	}
	s.log.Debug("started PostgreSQL", "version", bin.version.String(), "programs", bin.dir, "dir", s.cluster, "pid", cmd.Process.Pid, "runs_as", acct.String())
	return nil
}

// arguments returns all settings as command-line options of postgres, which override the
// cluster's configuration files.
func (s *Server) arguments(settings map[string]string) []string {
	all := maps.Clone(defaultSettings)
	all["shared_buffers"] = sharedBuffers(memory.Limit())
	maps.Copy(all, settings)
	maps.Copy(all, fixedSettings)
	all["unix_socket_directories"] = s.socketDir
	if s.socketDir == s.cluster {
		all["unix_socket_directories"] = "." // the server may know the cluster only by its descriptor
	}
	var args []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		args = append(args, "-c", name+"="+all[name])
	}
	return args
}

// run starts the server process and waits until it has ended. It locks its thread: the kernel
// sends the death signal already when the thread that forked ends, not only at the end of the
// process.
func (s *Server) run(started chan<- error, r *os.File) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := s.cmd.Start(); err != nil {
		started <- err
		return
	}
	var dog *watchdog
	if !hasDeathSignal {
		var err error
		if dog, err = watch(s.cmd.Process.Pid); err != nil {
			s.log.Warn("PostgreSQL will not stop if this process is killed", "err", err)
		}
	}
	started <- nil

	var drained sync.WaitGroup
	drained.Go(func() { s.output.drain(r) })
	err := s.cmd.Wait()
	if dog != nil {
		if err := dog.dismiss(); err != nil {
			s.log.Debug("ending PostgreSQL's watchdog failed", "err", err)
		}
	}
	// If the postmaster was killed, its backends keep the pipe of the log open until they
	// notice the death. So stop reading from this pipe after a second.
	_ = r.SetReadDeadline(time.Now().Add(time.Second))
	drained.Wait()
	r.Close()
	s.err = s.exitReason(err)
	close(s.done)
}

// exitReason returns why the server process ended; nil if it ended without an error after Stop
// was called.
func (s *Server) exitReason(err error) error {
	switch {
	case err == nil && s.stopping.Load():
		return nil
	case err == nil:
		return s.output.fail(errors.New("PostgreSQL was shut down by someone else"))
	default:
		return s.output.fail(fmt.Errorf("PostgreSQL ended: %w", err))
	}
}

// becomeReady waits until the server accepts connections, and creates the database purser if
// it doesn't exist.
func (s *Server) becomeReady(ctx context.Context) error {
	began := time.Now()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	slow := time.NewTimer(5 * time.Second)
	defer slow.Stop()
	for {
		if pm := readPostmasterFile(s.cluster); pm.ready && pm.pid == s.cmd.Process.Pid {
			break
		}
		select {
		case <-s.done:
			return fmt.Errorf("starting PostgreSQL on %s: %w", s.dataDir, s.err)
		case <-ctx.Done():
			return fmt.Errorf("waiting for PostgreSQL to start on %s: %w", s.dataDir, s.output.fail(ctx.Err()))
		case <-slow.C:
			s.log.InfoContext(ctx, "PostgreSQL is still starting: it is replaying its log after a crash", "dir", s.dataDir)
		case <-tick.C:
		}
	}
	if err := s.ensureDatabase(ctx); err != nil {
		return s.output.fail(err)
	}
	s.log.InfoContext(ctx, "PostgreSQL is ready", "dir", s.dataDir, "took", time.Since(began).Round(time.Millisecond))
	return nil
}

func (s *Server) ensureDatabase(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, s.DSN("postgres"))
	if err != nil {
		return fmt.Errorf("connecting to the built-in PostgreSQL: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing is pending
	var exists bool
	err = conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", defaultDatabase).Scan(&exists)
	if err != nil {
		return fmt.Errorf("looking for database %s: %w", defaultDatabase, err)
	}
	if exists {
		return nil
	}
	if _, err := conn.Exec(ctx, "CREATE DATABASE "+defaultDatabase); err != nil {
		return fmt.Errorf("creating database %s: %w", defaultDatabase, err)
	}
	return nil
}

// DSN returns a DSN, valid for pgx and libpq, for a database of the cluster, as its
// superuser. An empty name means the default database, purser.
func (s *Server) DSN(database string) string { return dsn(s.socketDir, database) }

// Done is closed when the server process has exited.
func (s *Server) Done() <-chan struct{} { return s.done }

// Err returns why the server exited; nil after Stop has stopped it without an error. Before
// Done is closed, it returns nil.
func (s *Server) Err() error {
	if !s.exited() {
		return nil
	}
	return s.err
}

func (s *Server) exited() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// Stop shuts the server down and releases the data directory. It waits up to partingTime for
// clients to close their connections, so that PostgreSQL doesn't log these as terminated. Then
// the server ends the remaining connections, rolls back their transactions and writes a
// checkpoint. If ctx ends first, the server is stopped without a checkpoint, so its next start
// runs recovery, and Stop returns ctx's error. Stop may be called more than once, also after
// the server has exited by itself.
func (s *Server) Stop(ctx context.Context) error {
	s.stopping.Store(true)
	s.output.stopping.Store(true)
	s.signal(syscall.SIGTERM)
	parting, cancel := context.WithTimeout(ctx, partingTime)
	defer cancel()
	select {
	case <-s.done:
	case <-parting.Done():
		s.signal(syscall.SIGINT)
	}
	var forced error
	select {
	case <-s.done:
	case <-ctx.Done():
		if s.exited() {
			break
		}
		forced = fmt.Errorf("stopping PostgreSQL on %s at once, without a checkpoint: %w", s.dataDir, ctx.Err())
		s.signal(syscall.SIGQUIT)
		if !s.exitsWithin(10 * time.Second) { // the postmaster kills its own backends after 5 s
			s.signal(syscall.SIGKILL)
			if !s.exitsWithin(10 * time.Second) {
				return fmt.Errorf("PostgreSQL on %s (process %d) survives SIGKILL: %w", s.dataDir, s.cmd.Process.Pid, ctx.Err())
			}
		}
	}
	return errors.Join(forced, s.release())
}

func (s *Server) signal(sig syscall.Signal) {
	if err := s.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		s.log.Warn("signalling PostgreSQL failed", "signal", sig.String(), "err", err)
	}
}

func (s *Server) exitsWithin(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-s.done:
		return true
	case <-t.C:
		return false
	}
}

// release stops the goroutine that reaps orphans, removes the socket's directory and unlocks
// the data directory.
func (s *Server) release() error {
	s.releaseOnce.Do(func() {
		close(s.endReaper)
		s.reaper.Wait()
		s.releaseErr = errors.Join(removeSocketDir(s.socketDir, s.cluster), s.lock.release())
	})
	return s.releaseErr
}
