package backup

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/purser-registry/purser/internal/blob"
)

// TestRestoreLeavesRoom: a restore ends before its rows fill the disk of the database, whether there is no
// room at the beginning or while they are loaded, and says how to go on. It goes on when there is room.
func TestRestoreLeavesRoom(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.push("v1", "content")
	// The entries have more bytes than are read between two looks at the room.
	r.Exec(t, `
		INSERT INTO auditlog (kind, namespace, detail)
		SELECT 'push_repo', 'app', jsonb_build_object('text', repeat(md5(i::text), 100)) FROM generate_series(1, 500) i`)
	target := newTarget(t)
	want := dump(t, r.dsn)
	r.backup(target)
	o := emptyRestoreOptions(t, target)
	full := &blob.DiskFullError{Disk: blob.Disk{Of: "the database", Reserve: 100}, DiskSpace: blob.DiskSpace{Size: 1000, Free: 99}}
	looks := 0
	for allowed := range 3 {
		looks = 0
		o.Room = func() error {
			if looks++; looks > allowed {
				return full
			}
			return nil
		}
		_, err := Restore(t.Context(), o)
		if e, ok := errors.AsType[*blob.DiskFullError](err); !ok || e != full || !errors.Is(err, syscall.ENOSPC) ||
			!strings.Contains(err.Error(), "there is no room for the rows: the disk of the database is full") || !strings.Contains(err.Error(), "it goes on") {
			t.Errorf("after %d looks: %v, want that the disk is full", allowed, err)
		}
	}
	looks = -1000
	if _, err := Restore(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	wantSame(t, dump(t, o.Main), want)
}

// TestTransferLeavesRoom: rows on their way don't fill the disk on which they wait.
func TestTransferLeavesRoom(t *testing.T) {
	t.Parallel()
	full := &blob.DiskFullError{Disk: blob.Disk{Of: "the database", Reserve: 100}, DiskSpace: blob.DiskSpace{Size: 1000, Free: 99}}
	target := limitedTarget{newTarget(t), func() error { return roomForRows(func() error { return full }) }}
	if err := target.Put(t.Context(), "x", 1, strings.NewReader("x")); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("%v, want that the disk is full", err)
	}
}
