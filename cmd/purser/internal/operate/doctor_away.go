package operate

import (
	"context"
	"time"

	"github.com/purser-registry/purser/cmd/purser/internal/backend"
	"github.com/purser-registry/purser/internal/blob"
)

// answerWithin is how long the doctor waits for a server that it only tries.
const answerWithin = 10 * time.Second

// tryStore tries the store, when there is no database with whose identity it could be compared.
func (d *doctor) tryStore(ctx context.Context) error {
	_, err := backend.TryStore(ctx, d.cfg.Storage, blob.DirOptions{Path: d.cfg.Storage.Filesystem.Path, Existing: true})
	return err
}

// tryRedis tries Redis, when there are no statistics with which its content could be compared.
func (d *doctor) tryRedis(ctx context.Context) error {
	redis, err := backend.NewRedis(d.cfg, nil)
	if err != nil {
		return err
	}
	defer redis.Close() //nolint:errcheck // nothing was written
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	return redis.Ping(ctx)
}

// tryDirectory logs the service account in at the directory.
func (d *doctor) tryDirectory(ctx context.Context) error {
	directory, err := backend.NewDirectory(d.cfg.Auth.LDAP, d.log)
	if err != nil {
		return err
	}
	defer directory.Close()
	ctx, cancel := context.WithTimeout(ctx, max(answerWithin, d.cfg.Auth.LDAP.Timeout))
	defer cancel()
	return directory.Check(ctx)
}

// tryProvider asks the OpenID Connect provider who it is.
func (d *doctor) tryProvider(ctx context.Context) error {
	provider, err := backend.NewProvider(ctx, d.cfg.Auth.OIDC, d.log)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, max(answerWithin, d.cfg.Auth.OIDC.Timeout))
	defer cancel()
	return provider.Check(ctx)
}
