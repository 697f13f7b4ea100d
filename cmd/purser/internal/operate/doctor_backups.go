package operate

import (
	"context"
	"os"
	"path/filepath"
	"slices"

	"github.com/purser-registry/purser/cmd/purser/internal/backend"
	"github.com/purser-registry/purser/internal/backup"
)

// examineBackupPlaces looks whether backups are only on disks of the registry itself. A place that isn't a
// directory of this machine is elsewhere.
func (d *doctor) examineBackupPlaces(ctx context.Context) error {
	list, err := backup.Standings(ctx, d.db.Pool)
	if err != nil || len(list) == 0 {
		return err
	}
	own := backend.Disks(d.cfg)
	elsewhere := func(s backup.Standing) bool {
		_, err := os.Stat(s.Place)
		return err != nil || !filepath.IsAbs(s.Place) || len(own.On(s.Place)) == 0
	}
	newest := own.On(list[0].Place)
	if len(newest) == 0 || slices.ContainsFunc(list, elsewhere) {
		return nil
	}
	d.find(levelWarning, "backups in "+list[0].Place, "name a place on another disk or machine: BACKUP_TARGET in /etc/default/purser-backup, if the timer makes them (docs/backup.md)",
		"they are on the disk of %s too, so both are lost together, and backups end when it has less left than storage.reserve", newest[0].Of)
	return nil
}
