package backend

import (
	"context"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/blob/s3"
	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/operatorfile"
)

// Storage is where the blobs are: a directory, or a bucket of S3.
type Storage interface {
	// Kind is the name of this kind of storage: filesystem or s3.
	Kind() string
	// Place describes where it is, for operators.
	Place() string
	// Directory is the directory of the blobs; "" if they are on no file system of this machine.
	Directory() string
	// TroubleOf classifies errors of the store.
	TroubleOf(err error) blob.Trouble

	// check finds mistakes in the settings, without a request.
	check(ctx context.Context) error
	// open opens the store without a request. The options `dir` apply if it is a directory.
	open(ctx context.Context, dir blob.DirOptions) (blob.Store, error)
	// temporary says whether a first request that failed so may succeed some minutes later.
	temporary(err error) bool
}

// StorageOf returns the storage that is configured.
func StorageOf(cfg config.Storage) Storage {
	if cfg.S3.Bucket != "" {
		return bucket{cfg.S3}
	}
	return directory{cfg.Filesystem.Path}
}

type directory struct{ path string }

func (d directory) Kind() string                     { return "filesystem" }
func (d directory) Place() string                    { return d.path }
func (d directory) Directory() string                { return d.path }
func (d directory) TroubleOf(err error) blob.Trouble { return blob.TroubleOf(err) }
func (d directory) check(context.Context) error      { return nil }
func (d directory) temporary(error) bool             { return false }

func (d directory) open(_ context.Context, o blob.DirOptions) (blob.Store, error) {
	return blob.OpenDir(o)
}

type bucket struct{ config.S3 }

func (b bucket) Kind() string                     { return "s3" }
func (b bucket) Directory() string                { return "" }
func (b bucket) TroubleOf(err error) blob.Trouble { return s3.TroubleOf(err) }
func (b bucket) temporary(err error) bool         { return s3.Temporary(err) }

func (b bucket) Place() string {
	place := "s3://" + b.Bucket
	if b.Prefix != "" {
		place += "/" + b.Prefix
	}
	return place
}

func (b bucket) check(ctx context.Context) error {
	store, err := openBucket(ctx, b.S3)
	if err != nil {
		return of("storage.s3", err)
	}
	return store.Close()
}

func (b bucket) open(ctx context.Context, _ blob.DirOptions) (blob.Store, error) {
	return openBucket(ctx, b.S3)
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
