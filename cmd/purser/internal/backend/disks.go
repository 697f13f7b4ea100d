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
// free there (storage.reserve): those of the blobs, unless they are in S3, and of the built-in
// PostgreSQL. Their directories must exist.
func Disks(cfg *config.Config) blob.Disks {
	var list blob.Disks
	add := func(of, path string) {
		d := blob.Disk{Of: of, Path: path}
		if s, err := blob.SpaceOf(path); err == nil {
			d.Reserve = reserveOf(cfg.Storage, s)
		}
		list = append(list, d)
	}
	if !cfg.Storage.UsesS3() {
		add("the blobs", cfg.Storage.Filesystem.Path)
	}
	if cfg.Database.Main == "" {
		add("the database", cfg.DataDir)
	}
	return list
}

// reserveOf returns how many bytes pushes leave free on a disk.
func reserveOf(cfg config.Storage, s blob.DiskSpace) int64 {
	if cfg.LimitReserve {
		return blob.DefaultReserve(s.Size, cfg.Reserve)
	}
	return cfg.Reserve
}

const (
	// The file of reserveName takes so much, at most a tenth of the disk: enough for PostgreSQL to
	// recover and for garbage collection to begin.
	reserveBytes = 256 << 20
	reserveName  = "reserve"
	// reserveEvery is how often a server looks whether it can make the file.
	reserveEvery = time.Minute
)

// reserveFile takes room on the disk of the built-in PostgreSQL, which is given back when the disk is
// full all the same, by other programs for example. PostgreSQL can't start on a full disk, and without
// it nothing can be deleted.
type reserveFile struct {
	path    string
	storage config.Storage
	log     *slog.Logger
}

func newReserveFile(cfg *config.Config, log *slog.Logger) reserveFile {
	return reserveFile{filepath.Join(cfg.DataDir, reserveName), cfg.Storage, log}
}

// size returns the size of the file on this disk.
func (f reserveFile) size(s blob.DiskSpace) int64 { return min(reserveBytes, s.Size/10) }

// release removes the file if the disk has less left than the file takes.
func (f reserveFile) release() {
	s, err := blob.SpaceOf(filepath.Dir(f.path))
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
func (f reserveFile) keep() {
	if _, err := os.Stat(f.path); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return
	}
	s, err := blob.SpaceOf(filepath.Dir(f.path))
	if err != nil || s.Free < reserveOf(f.storage, s)+2*f.size(s) {
		return
	}
	if err := blob.Allocate(f.path, f.size(s)); err != nil {
		f.log.Debug("no room can be kept for PostgreSQL", "file", f.path, "error", err)
	}
}

// KeepRoom keeps room for PostgreSQL on its disk until ctx ends. It begins a minute after the start.
func (p *Postgres) KeepRoom(ctx context.Context) error {
	for worker.Sleep(ctx, reserveEvery) == nil {
		p.reserve.keep()
	}
	return nil
}
