package serve

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/config"
)

// A server is ready if pulls can succeed. What lets only pushes fail doesn't make it unready: all
// replicas share one store, so a load balancer would take all of them out of service, and nobody
// could pull any more. The table of docs/configuration.md says so for each failure.

// storageCheck fails if blobs can't be read.
func storageCheck(check func(context.Context) error) readinessCheck {
	return readinessCheck{name: "storage", run: func(ctx context.Context) error {
		if err := check(ctx); !errors.Is(err, blob.ErrReadOnly) {
			return err
		}
		return nil
	}}
}

// leastSpace is how many bytes a directory of blobs must have free, or pushes are taken to fail.
const leastSpace = 1 << 20

// pushesCheck fails if the store can be read, and not written, or if its disk is full. The server
// stays ready.
func pushesCheck(check func(context.Context) error, space func() (int64, error)) readinessCheck {
	return readinessCheck{name: "pushes", spare: true, run: func(ctx context.Context) error {
		if err := check(ctx); err != nil {
			return err
		}
		free, err := space()
		if err == nil && free < leastSpace {
			return fmt.Errorf("the file system of the blobs is full: %d bytes are free", free)
		}
		return err
	}}
}

// spaceFor returns a function that finds out how many bytes the directory of blobs has free. A
// bucket has no limit that is known.
func spaceFor(cfg *config.Config) func() (int64, error) {
	path := cfg.Storage.Filesystem.Path
	return func() (int64, error) {
		if path == "" {
			return math.MaxInt64, nil
		}
		return blob.FreeSpace(path)
	}
}
