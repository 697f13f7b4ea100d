package serve

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/worker"
)

// reloadable are the settings that a reload applies. Changes of all other settings need a
// restart.
var reloadable = []string{"log.level"}

// reloader reads the configuration and the certificate again on SIGHUP, and applies what
// has changed.
type reloader struct {
	load    func() (*config.Config, error) // reads the configuration as the start did
	running *config.Config
	level   *slog.LevelVar
	cert    certificates // nil: no TLS
	log     *slog.Logger
}

// handle starts a goroutine that reloads on each SIGHUP until ctx ends; the returned `wait`
// waits until this goroutine ends. A process also gets SIGHUP when its terminal is closed.
// For a SIGHUP of this kind the goroutine calls `stop` instead of reloading, unless the
// process was started with the signal ignored (nohup). A nil reloader leaves the signal's
// handling unchanged.
func (r *reloader) handle(ctx context.Context, cert certificates, stop func()) (wait func()) {
	if r == nil {
		return func() {}
	}
	r.cert = cert
	ignored := signal.Ignored(syscall.SIGHUP)
	attended := hasTerminal()
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer signal.Stop(hangups)
		for {
			select {
			case <-ctx.Done():
				return
			case <-hangups:
			}
			if attended && !ignored && !hasTerminal() {
				r.log.InfoContext(ctx, "stopping: the terminal was closed")
				stop()
				return
			}
			r.reload(ctx)
		}
	}()
	return func() { <-done }
}

// reload reads the configuration again, applies its log level and the certificate, and logs
// in one line what it did. If the configuration can't be read, reload changes nothing and
// logs the error.
func (r *reloader) reload(ctx context.Context) {
	// Its files may be on a file system that hangs, and a stop mustn't wait for that.
	cfg, err := worker.Await(ctx, r.load)
	if err != nil {
		r.log.ErrorContext(ctx, "SIGHUP: nothing was reloaded, since the configuration can't be read", "error", err)
		return
	}
	if r.cert != nil {
		if err := r.cert.reload(ctx); err != nil {
			r.log.ErrorContext(ctx, "SIGHUP: the certificate stays as it was", "error", err)
		}
	}
	restart := slices.DeleteFunc(r.running.Changed(cfg), func(key string) bool { return slices.Contains(reloadable, key) })
	if err := r.level.UnmarshalText([]byte(cfg.Log.Level)); err != nil {
		r.log.ErrorContext(ctx, "SIGHUP: the log's level stays as it was", "error", err)
	}
	fields := []any{"log_level", strings.ToLower(r.level.Level().String())}
	if r.cert != nil {
		if end := r.cert.validUntil(); !end.IsZero() {
			fields = append(fields, "certificate_valid_until", end.Format(time.RFC3339))
		}
	}
	if len(restart) > 0 {
		fields = append(fields, "changed_and_needs_a_restart", restart)
	}
	r.log.Log(ctx, max(slog.LevelInfo, r.level.Level()), "SIGHUP: reloaded", fields...)
}

// hasTerminal says whether the process still has a controlling terminal.
func hasTerminal() bool {
	f, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return false
	}
	f.Close() //nolint:errcheck // nothing was written
	return true
}
