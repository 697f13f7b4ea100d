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
