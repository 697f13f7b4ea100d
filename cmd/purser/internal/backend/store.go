package backend

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/blob/s3"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/operatorfile"
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
	if cfg.UsesS3() {
		return ""
	}
	if entries, err := os.ReadDir(cfg.Filesystem.Path); err != nil || len(entries) > 0 {
		return ""
	}
	return `. The directory is empty: only if all blobs are lost and the registry is to go on without them, run "purser store adopt --force"`
}

// IdentifiedStore wraps `store` so that its identity is compared with the one to which the
// database is bound.
func IdentifiedStore(cfg config.Storage, metadata *db.DB, store blob.Store, log *slog.Logger) (*storeid.Store, error) {
	return storeid.New(storeid.Options{
		DB: metadata, Catalog: catalog.New(catalog.Options{DB: metadata, CacheOff: true, Log: log}),
		Store: store, Place: StorePlace(cfg), Local: !cfg.UsesS3(), Log: log,
	})
}

// StoreTrouble returns the function that classifies the errors of the configured kind of
// store: S3 or a directory.
func StoreTrouble(s config.Storage) func(error) blob.Trouble {
	if s.UsesS3() {
		return s3.TroubleOf
	}
	return blob.TroubleOf
}

// StorePlace describes the store's location.
func StorePlace(s config.Storage) string {
	if !s.UsesS3() {
		return s.Filesystem.Path
	}
	place := "s3://" + s.S3.Bucket
	if s.S3.Prefix != "" {
		place += "/" + s.S3.Prefix
	}
	return place
}

// openBucket makes the store of a bucket. It sends no request.
func openBucket(ctx context.Context, c config.S3) (*s3.Store, error) {
	roots, err := operatorfile.Roots(ctx, c.CAFile)
	if err != nil {
		return nil, of("storage.s3.ca_file", err)
	}
	encryption := s3.Encryption(c.Encryption)
	if c.Encryption == "none" {
		encryption = s3.EncryptNone
	}
	return s3.New(s3.Options{
		Endpoint: c.Endpoint, Bucket: c.Bucket, Region: c.Region, Prefix: c.Prefix, PathStyle: c.PathStyle,
		AccessKey: c.AccessKey, SecretKey: string(c.SecretKey), Roots: roots,
		Encryption: encryption, KMSKey: c.KMSKey, Timeout: c.Timeout,
	})
}

// TryStore opens the configured blob store and tests it with a request. The options `dir`
// apply if the store is a directory.
func TryStore(ctx context.Context, cfg config.Storage, dir blob.DirOptions) (blob.Store, error) {
	var store blob.Store
	var err error
	if c := cfg.S3; cfg.UsesS3() {
		store, err = openBucket(ctx, c)
	} else {
		store, err = blob.OpenDir(dir)
	}
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	if err := store.Check(ctx); err != nil {
		if cfg.UsesS3() && s3.Temporary(err) {
			err = &awayError{err}
		}
		return nil, fmt.Errorf("trying the blob store: %w", err)
	}
	return store, nil
}
