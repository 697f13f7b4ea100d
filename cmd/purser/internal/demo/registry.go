package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/purser-registry/purser/cmd/purser/internal/backend"
	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/cmd/purser/internal/serve"
	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/builtinpg"
	"github.com/purser-registry/purser/internal/config"
)

const (
	// reviewDelay is the delay of most reviews. A deleted index takes three of these delays:
	// its own, that of its images and that of their blobs.
	reviewDelay = 3 * time.Second
	// pushDelay is the delay of reviews after uploads: for so long a blob waits for its
	// manifest, and an image for its index.
	pushDelay = 15 * time.Second
)

// settings returns the settings of the demo's registry, in the form of environment variables.
func settings(dir, addr string) []string {
	return []string{
		"PURSER_DATA_DIR=" + dir,
		"PURSER_HTTP_ADDR=" + addr,
		"PURSER_HTTP_DEBUG_ADDR=off",
		"PURSER_HTTP_DRAIN_TIMEOUT=2s",
		"PURSER_AUTH_ENABLED=false",
		"PURSER_LOG_LEVEL=warn",
		"PURSER_LOG_FORMAT=text",
		"PURSER_GC_REVIEW_AFTER=" + reviewDelay.String(),
		"PURSER_GC_REVIEW_AFTER_EVENTS=blob_upload=" + pushDelay.String() + ", manifest_upload=" + pushDelay.String(),
		"PURSER_AUTOPRUNE_INTERVAL=1s",
		"PURSER_PULL_STATISTICS_INTERVAL=1s",
	}
}

// registry is a registry that runs in this process.
type registry struct {
	url   string
	dsn   string        // of its database
	took  time.Duration // until it was ready
	store blob.Store    // the registry's own, for reading
	// context ends when the registry is to stop, and also when it has stopped by itself.
	context context.Context
	cancel  context.CancelFunc
	ended   chan struct{} // closed when err is set
	err     error         // why it ended; nil if it was stopped
}

// startRegistry starts a registry and returns when it is ready; until then, the line shows what it is
// doing. The registry stops when ctx ends.
func startRegistry(ctx context.Context, dir, addr string, line *line, log io.Writer) (*registry, error) {
	cfg, err := config.Load("", settings(dir, addr))
	if err := errors.Join(err, cfg.Validate()); err != nil {
		return nil, fmt.Errorf("the demo's configuration: %w", err)
	}
	logger, err := command.NewLogger(log, cfg.Log)
	if err != nil {
		return nil, err
	}
	r, began := &registry{ended: make(chan struct{})}, time.Now()
	r.context, r.cancel = context.WithCancel(ctx)
	ready := make(chan string, 1)
	go func() {
		defer close(r.ended)
		defer r.cancel()
		r.err = serve.RunFor(r.context, cfg, logger, line.ProgressLine, func(url string) { ready <- url })
	}()
	select {
	case r.url = <-ready:
		r.took = time.Since(began)
	case <-r.ended:
		return nil, r.err
	}
	if r.dsn, err = builtinpg.RunningDSN(backend.PostgresDir(cfg), backend.DatabaseName); err != nil {
		return nil, errors.Join(err, r.stop())
	}
	place := filepath.Clean(cfg.Storage.Filesystem.Path)
	if r.store, err = backend.TryStore(r.context, cfg.Storage, blob.DirOptions{Path: place, Existing: true}); err != nil {
		return nil, errors.Join(err, r.stop())
	}
	return r, nil
}

// stop stops the registry and returns when all of it has ended, its PostgreSQL too. It returns
// the error with which the registry has ended.
func (r *registry) stop() error {
	r.cancel()
	<-r.ended
	if r.err != nil && !errors.Is(r.err, context.Canceled) {
		return fmt.Errorf("the registry: %w", r.err)
	}
	return nil
}
