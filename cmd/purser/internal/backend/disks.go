package backend

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/worker"
)

// Disks returns the file systems on which the registry keeps data of its own, with what pushes leave
// free there (storage.reserve): that of the blobs, unless they are in S3, and that of the built-in
// PostgreSQL.
func Disks(cfg *config.Config) blob.Disks {
	var list blob.Disks
	if dir := StorageOf(cfg.Storage).Directory(); dir != "" {
		list = append(list, disk(cfg.Storage, "the blobs", dir))
	}
	return append(list, DatabaseDisk(cfg)...)
}

// DatabaseDisk returns the file system of the built-in PostgreSQL, with what pushes leave free there; none
// if another PostgreSQL is configured.
func DatabaseDisk(cfg *config.Config) blob.Disks {
	if cfg.Database.Main != "" {
		return nil
	}
	return blob.Disks{disk(cfg.Storage, "the database", cfg.DataDir)}
}

func disk(cfg config.Storage, of, path string) blob.Disk {
	return blob.Disk{Of: of, Path: path, Reserve: cfg.Reserve, Limited: cfg.LimitReserve}
}

const (
	// reserveBytes is the size of the file reserveName, which is also at most a tenth of the disk:
	// enough for PostgreSQL to recover and for garbage collection to begin.
	reserveBytes = 256 << 20
	reserveName  = "reserve"
	// reserveEvery is how often a server looks whether it can make the file. After failures, each of
	// which may have written all of the file, it waits longer and longer, up to reserveRest.
	reserveEvery = time.Minute
	reserveRest  = 24 * time.Hour
)

// reserveFile is a file on the disk of the built-in PostgreSQL that only takes room. It is removed when
// PostgreSQL starts on a disk that is full in spite of the reserve, because of other programs for
// example: PostgreSQL couldn't start there, and without PostgreSQL nothing can be deleted.
type reserveFile struct {
	path     string
	disk     blob.Disk
	allocate func(path string, n int64) error // blob.Allocate; tests replace it
	log      *slog.Logger
}

func newReserveFile(cfg *config.Config, log *slog.Logger) reserveFile {
	return reserveFile{filepath.Join(cfg.DataDir, reserveName), disk(cfg.Storage, "the database", cfg.DataDir), blob.Allocate, log}
}

// size returns the size of the file on this disk.
func (f reserveFile) size(s blob.DiskSpace) int64 { return min(reserveBytes, s.Size/10) }

// release removes the file if the disk has less left than the file takes. The caller is about to start
// PostgreSQL, and nobody else runs it.
func (f reserveFile) release() {
	s, err := blob.SpaceOf(f.disk.Path)
	if err != nil || s.Free >= f.size(s) {
		return
	}
	switch err := os.Remove(f.path); {
	case err == nil:
		f.log.Warn("the disk of the database is full, so the file that kept room was removed: delete images or make the disk larger; pushes are refused until then",
			"file", f.path, "free", humanize.IBytes(uint64(max(s.Free, 0)))) //nolint:gosec // not negative
	case !errors.Is(err, fs.ErrNotExist):
		f.log.Warn("the disk of the database is full, and the file that keeps room can't be removed", "file", f.path, "error", err)
	}
}

// keep makes the file if there is room for it besides what pushes leave free.
func (f reserveFile) keep() error {
	if _, err := os.Stat(f.path); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	s, err := blob.SpaceOf(f.disk.Path)
	if err != nil || s.Free < f.disk.Leave(s)+2*f.size(s) {
		return nil
	}
	return f.allocate(f.path, f.size(s))
}

// run calls keep until ctx ends, first after reserveEvery.
func (f reserveFile) run(ctx context.Context) {
	failures := 0
	for pause := reserveEvery; worker.Sleep(ctx, pause) == nil; {
		err := f.keep()
		if err == nil {
			failures, pause = 0, reserveEvery
			continue
		}
		failures++
		pause = worker.Backoff(failures+1, reserveEvery, reserveRest)
		f.log.WarnContext(ctx, "no room can be kept for PostgreSQL on its disk", "file", f.path, "error", err, "again_in", pause)
	}
}

// KeepRoom keeps room for PostgreSQL on its disk until ctx ends. It begins a minute after the start.
func (p *Postgres) KeepRoom(ctx context.Context) error {
	p.reserve.run(ctx)
	return nil
}
