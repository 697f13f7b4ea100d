package backend

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/config"
)

// TestReserveIsntWrittenInVain: if the file that keeps room can't be made, a server doesn't try that each
// minute, since each attempt may write all of it. Once it can be made, a file that was removed is made
// again within a minute.
func TestReserveIsntWrittenInVain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		var tries atomic.Int64
		var works atomic.Bool
		f := reserveFile{path: filepath.Join(dir, reserveName), disk: blob.Disk{Path: dir}, log: slog.New(slog.DiscardHandler),
			allocate: func(path string, _ int64) error {
				if tries.Add(1); !works.Load() {
					return syscall.EIO
				}
				return os.WriteFile(path, nil, 0o600)
			}}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go f.run(ctx)
		time.Sleep(48 * time.Hour)
		if n := tries.Load(); n < 8 || n > 24 {
			t.Errorf("%d attempts in two days, want some more at first, and then one or two a day", n)
		}
		works.Store(true)
		for _, wait := range []time.Duration{reserveRest, reserveEvery} {
			time.Sleep(wait + time.Second)
			if err := os.Remove(f.path); err != nil {
				t.Errorf("%v later: %v", wait, err)
			}
		}
	})
}

// TestDatabaseDisk: rows may fill this machine's disk only if PostgreSQL is built in. Its disk counts, and not
// that of the blobs.
func TestDatabaseDisk(t *testing.T) {
	t.Parallel()
	cfg := &config.Config{DataDir: "/data", Storage: config.Storage{Filesystem: config.Filesystem{Path: "/blobs"}}}
	if list := DatabaseDisk(cfg); len(list) != 1 || list[0].Path != "/data" || len(Disks(cfg)) != 2 {
		t.Errorf("with a PostgreSQL of its own: %+v of %+v", list, Disks(cfg))
	}
	cfg.Database.Main = "postgres://elsewhere/purser"
	if list := DatabaseDisk(cfg); len(list) != 0 || list.Room() != nil || len(Disks(cfg)) != 1 {
		t.Errorf("with another PostgreSQL: %+v of %+v", list, Disks(cfg))
	}
}
