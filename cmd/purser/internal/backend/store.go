package backend

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/storeid"
)

// storeTimeout limits the first request to the blob store, which tests it.
const storeTimeout = 30 * time.Second

// OpenStore opens the blob store for a process that writes to it. It returns an error
// unless the database is bound to this store; at the first start of a registry it binds
// them. The function `measure`, which may be nil, wraps a store so that its requests are
// measured. OpenStore calls it before it adds the check of the store's identity, so that
// this check's requests are measured too.
func OpenStore(ctx context.Context, cfg config.Storage, metadata *db.DB, log *slog.Logger, measure func(blob.Store) (blob.Store, error)) (*storeid.Store, error) {
	known, err := storeid.Read(ctx, metadata)
	if err != nil {
		return nil, err
	}
	// Once the database is bound to a store, the store's directory must exist: otherwise a
	// new store would be made in the empty mount point of a missing volume.
	store, err := TryStore(ctx, cfg, blob.DirOptions{Path: cfg.Filesystem.Path, Existing: known.Confirmed})
	if err != nil {
		if known.Confirmed {
			err = fmt.Errorf("%w; the database's store has the identity %s, and was last at %s%s", err, known.ID, known.Place, beginAnew(cfg))
		}
		return nil, err
	}
	if measure != nil {
		if store, err = measure(store); err != nil {
			return nil, err
		}
	}
	s, err := IdentifiedStore(cfg, metadata, store, log)
	if err != nil {
		return nil, err
	}
	return s, s.Establish(ctx)
}

// beginAnew tells of the way to a new, empty store only where an empty one was seen. After any other
// failure the registry's store is probably somewhere.
func beginAnew(cfg config.Storage) string {
	dir := StorageOf(cfg).Directory()
	if entries, err := os.ReadDir(dir); dir == "" || err != nil || len(entries) > 0 {
		return ""
	}
	return `. The directory is empty: only if all blobs are lost and the registry is to go on without them, run "purser store adopt --force"`
}

// IdentifiedStore wraps `store` so that its identity is compared with the one to which the
// database is bound.
func IdentifiedStore(cfg config.Storage, metadata *db.DB, store blob.Store, log *slog.Logger) (*storeid.Store, error) {
	storage := StorageOf(cfg)
	return storeid.New(storeid.Options{
		DB: metadata, Catalog: catalog.New(catalog.Options{DB: metadata, CacheOff: true, Log: log}),
		Store: store, Place: storage.Place(), Local: storage.Directory() != "", Log: log,
	})
}

// TryStore opens the configured blob store and tests it with a request. The options `dir`
// apply if the store is a directory.
func TryStore(ctx context.Context, cfg config.Storage, dir blob.DirOptions) (blob.Store, error) {
	storage := StorageOf(cfg)
	store, err := storage.open(ctx, dir)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	if err := store.Check(ctx); err != nil {
		if storage.temporary(err) {
			err = &awayError{err}
		}
		return nil, fmt.Errorf("trying the blob store: %w", err)
	}
	return store, nil
}
