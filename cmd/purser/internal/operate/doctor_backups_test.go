package operate

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/purser-registry/purser/internal/backup"
	"github.com/purser-registry/purser/internal/blob"
)

// TestDoctorOfBackupPlaces: backups that are only on a disk of the registry itself are found, unless there
// are others elsewhere.
func TestDoctorOfBackupPlaces(t *testing.T) {
	t.Parallel()
	g := newGarbage(t)
	g.run("store", "adopt")
	about := func() (list []finding) {
		found, _ := g.examined(t)
		return slices.DeleteFunc(found, func(f finding) bool { return !strings.HasPrefix(f.About, "backups") })
	}
	const add = "INSERT INTO backups (place, backup, snapshot_at, verified_at) VALUES ($1, '20260101T000000.000Z', now(), now())"
	place := t.TempDir()
	g.exec(add, place)
	found := about()
	wants(t, found, levelWarning, "backups in "+place, "they are on the disk of the blobs too")
	if len(found) != 1 {
		t.Errorf("found %+v, want one", found)
	}
	for _, elsewhere := range []string{"s3://backups/purser", "/not/there", "/dev"} {
		g.exec(add, elsewhere)
		if found := about(); len(found) > 0 {
			t.Errorf("of backups in %s too: %+v", elsewhere, found)
		}
		g.exec("DELETE FROM backups WHERE place = $1", elsewhere)
	}
}

// TestDoctorOfHangingPlaces: places of backups whose volumes hang are told, all within the time for one, and
// count as elsewhere.
func TestDoctorOfHangingPlaces(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		goOn := make(chan struct{})
		defer close(goOn)
		d, began := &doctor{}, time.Now()
		list := []backup.Standing{{Place: "/srv/backup"}, {Place: "/mnt/backup"}, {Place: "/mnt/another"}}
		err := d.comparePlaces(t.Context(), list, func(place string) blob.Disks {
			if strings.HasPrefix(place, "/mnt/") {
				<-goOn
			}
			return blob.Disks{{Of: "the blobs", Path: "/srv"}}
		})
		if took := time.Since(began); err != nil || took != placeWithin {
			t.Errorf("%v after %v", err, took)
		}
		for _, place := range []string{"/mnt/backup", "/mnt/another"} {
			wants(t, d.findings, levelWarning, "backups in "+place, "hang too")
		}
		if len(d.findings) != 2 {
			t.Errorf("found %+v, want two", d.findings)
		}
	})
}
