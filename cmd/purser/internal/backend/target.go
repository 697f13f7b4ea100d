package backend

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/purser-registry/purser/internal/backup"
	"github.com/purser-registry/purser/internal/config"
)

// S3Access says how a bucket of backups is reached. Where a field is empty, the setting of
// storage.s3 applies. With an endpoint, the keys of the environment (AWS_ACCESS_KEY_ID) win over
// those of storage.s3.
type S3Access struct {
	Endpoint  string
	Region    string
	PathStyle bool
	CAFile    string // of Endpoint; "": the system's authorities
}

func (a S3Access) check() error {
	if a.CAFile != "" && a.Endpoint == "" {
		return errors.New("--s3-ca-file is for the service of --s3-endpoint; for that of the blobs set storage.s3.ca_file")
	}
	return nil
}

// BackupTarget opens the place that the argument names: a directory, or s3://BUCKET/PREFIX.
func BackupTarget(ctx context.Context, text string, cfg config.Storage, a S3Access) (backup.Target, error) {
	if err := a.check(); err != nil {
		return nil, err
	}
	rest, inS3 := strings.CutPrefix(text, "s3://")
	if !inS3 {
		if text == "" || strings.Contains(text, "://") {
			return nil, fmt.Errorf("%q is neither a directory nor s3://BUCKET/PREFIX", text)
		}
		return backup.InDirectory(text)
	}
	bucket, prefix, _ := strings.Cut(rest, "/")
	prefix = strings.Trim(prefix, "/")
	if c := cfg.S3; bucket == c.Bucket && prefix == c.Prefix {
		return nil, fmt.Errorf("%s is the place of the registry's own blobs: name another bucket or prefix", text)
	}
	c := cfg.S3
	c.Endpoint, c.Region, c.Bucket, c.Prefix = cmp.Or(a.Endpoint, c.Endpoint), cmp.Or(a.Region, c.Region), bucket, prefix
	c.PathStyle = a.PathStyle || c.PathStyle
	if a.Endpoint != "" {
		// Another service has other authorities and encrypts otherwise, and has other access keys: those
		// of the environment.
		c.CAFile, c.Encryption, c.KMSKey = a.CAFile, "", ""
		if os.Getenv("AWS_ACCESS_KEY_ID") != "" {
			c.AccessKey, c.SecretKey = "", ""
		}
	}
	store, err := openBucket(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", text, err)
	}
	return backup.InBucket(store, text), nil
}

// BlobPlace returns the settings of the blob store that the argument names: a directory, or
// s3://BUCKET/PREFIX.
func BlobPlace(text string, cfg config.Storage, a S3Access) (config.Storage, error) {
	if err := a.check(); err != nil {
		return cfg, err
	}
	rest, inS3 := strings.CutPrefix(text, "s3://")
	if !inS3 {
		if text == "" || strings.Contains(text, "://") {
			return cfg, fmt.Errorf("%q is neither a directory nor s3://BUCKET/PREFIX", text)
		}
		path, err := filepath.Abs(text)
		if err != nil {
			return cfg, err
		}
		cfg.S3, cfg.Filesystem.Path = config.S3{}, path
		return cfg, nil
	}
	cfg.S3.Bucket, cfg.S3.Prefix, _ = strings.Cut(rest, "/")
	cfg.S3.Prefix = strings.Trim(cfg.S3.Prefix, "/")
	if cfg.S3.Bucket == "" {
		return cfg, fmt.Errorf("%q names no bucket", text)
	}
	cfg.S3.Endpoint, cfg.S3.Region = cmp.Or(a.Endpoint, cfg.S3.Endpoint), cmp.Or(a.Region, cfg.S3.Region)
	cfg.S3.PathStyle = a.PathStyle || cfg.S3.PathStyle
	if a.Endpoint != "" {
		cfg.S3.CAFile = a.CAFile
	}
	return cfg, nil
}
