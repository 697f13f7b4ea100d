package operate

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/purser-registry/purser/cmd/purser/internal/backend"
	"github.com/purser-registry/purser/internal/backup"
	"github.com/purser-registry/purser/internal/blob"
)

// placeWithin is how long the doctor waits for a look at a place of backups.
const placeWithin = 10 * time.Second

// examineBackupPlaces looks whether backups are only on disks of the registry itself. A place that isn't a
// directory of this machine is elsewhere.
func (d *doctor) examineBackupPlaces(ctx context.Context) error {
	list, err := backup.Standings(ctx, d.db.Pool)
	if err != nil || len(list) == 0 {
		return err
	}
	own := backend.Disks(d.cfg)
	return d.comparePlaces(ctx, list, func(place string) blob.Disks {
		if _, err := os.Stat(place); err != nil || !filepath.IsAbs(place) {
			return nil
		}
		return own.On(place)
	})
}

// comparePlaces says so if all places of backups are on the registry's disks. ownDisks returns those on which
// a place is, or none if it is elsewhere. It may hang with the place's volume, as on NFS; such a place is a
// finding of its own, and elsewhere.
func (d *doctor) comparePlaces(ctx context.Context, list []backup.Standing, ownDisks func(place string) blob.Disks) error {
	disks, errs := make([]blob.Disks, len(list)), make([]error, len(list))
	var asking sync.WaitGroup
	for i, s := range list {
		asking.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, placeWithin)
			defer cancel()
			var look blob.Question[blob.Disks]
			disks[i], errs[i] = look.Ask(ctx, func() (blob.Disks, error) { return ownDisks(s.Place), nil })
		})
	}
	asking.Wait()
	elsewhere := false
	for i, s := range list {
		elsewhere = elsewhere || len(disks[i]) == 0
		if errors.Is(errs[i], blob.ErrNoAnswer) {
			d.find(levelWarning, "backups in "+s.Place, "see why the server of its volume doesn't answer, and mount it again",
				"it didn't answer within %s, so backups there hang too", placeWithin)
			continue
		}
		if errs[i] != nil {
			return errs[i]
		}
	}
	if elsewhere {
		return nil
	}
	d.find(levelWarning, "backups in "+list[0].Place, "name a place on another disk or machine: BACKUP_TARGET in /etc/default/purser-backup, if the timer makes them (docs/backup.md)",
		"they are on the disk of %s too, so both are lost together, and backups end when it has less left than storage.reserve", disks[0][0].Of)
	return nil
}

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
