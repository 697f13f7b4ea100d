package blob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"

	"github.com/dustin/go-humanize"
)

// Disk is the file system of a directory in which the registry keeps data.
type Disk struct {
	Of   string // names in a sentence the data that is kept there: "the blobs"
	Path string
	// Reserve is how many bytes pushes leave free. If Limited is set, it is at most a tenth of the file
	// system.
	Reserve int64
	Limited bool
}

// DiskSpace is what a file system has.
type DiskSpace struct {
	Size int64 // bytes
	Free int64 // bytes that this process may still use
}

// Leave returns how many bytes pushes leave free on the disk, which has this space.
func (d Disk) Leave(s DiskSpace) int64 {
	if d.Limited {
		return min(d.Reserve, s.Size/10)
	}
	return d.Reserve
}

// DiskFullError says that a file system has less left than pushes must leave free. It wraps ENOSPC.
type DiskFullError struct {
	Disk
	DiskSpace
}

func (e *DiskFullError) Error() string {
	return fmt.Sprintf("the disk of %s is full: %s of %s are free, and %s are kept for the database's log and for deleting",
		e.Of, humanize.IBytes(uint64(max(e.Free, 0))), humanize.IBytes(uint64(max(e.Size, 0))), humanize.IBytes(uint64(max(e.Leave(e.DiskSpace), 0)))) //nolint:gosec // not negative
}

func (e *DiskFullError) Unwrap() error { return syscall.ENOSPC }

// Disks are the file systems on which pushes must leave bytes free.
type Disks []Disk

// Room returns a *DiskFullError if one of the file systems has less left than its reserve. A file system
// that can't be asked counts as one with room: writing to it says more.
func (d Disks) Room() error {
	for _, disk := range d {
		if s, err := SpaceOf(disk.Path); err == nil && s.Free < disk.Leave(s) {
			return &DiskFullError{disk, s}
		}
	}
	return nil
}

// On returns the disks of the list on which a directory is, or would be made. A file system that can't be
// asked counts as another one.
func (d Disks) On(dir string) (list Disks) {
	device, err := deviceOf(dir)
	if err != nil {
		return nil
	}
	for _, disk := range d {
		if other, err := deviceOf(disk.Path); err == nil && other == device {
			list = append(list, disk)
		}
	}
	return list
}

// roomEvery is how many bytes of an upload or a copy are written before its file system is asked again,
// which takes about a microsecond. So many bytes may each of those at one time write into the reserve.
const roomEvery = 256 << 10

// LeaveRoom returns a store whose writers take no more bytes once a file system has less left than its
// reserve. A writer still saves and finishes the bytes that it has, and the store deletes.
func LeaveRoom(s Store, d Disks) Store { return &reserving{s, d} }

// LeaveRoomBeside is LeaveRoom for a store into which a restore or a move puts objects: of the file systems,
// only those count on which the store is. It returns a store that isn't a directory as it is.
func LeaveRoomBeside(s Store, d Disks) Store {
	if dir, ok := s.(*Dir); ok {
		return LeaveRoom(s, d.On(dir.path))
	}
	return s
}

type reserving struct {
	Store
	disks Disks
}

// Resume implements Store.
func (s *reserving) Resume(ctx context.Context, base string, state State, size int64, claim Claim, numbers Numbers) (Writer, error) {
	if err := s.disks.Room(); err != nil {
		return nil, err
	}
	w, err := s.Store.Resume(ctx, base, state, size, claim, numbers)
	if err != nil {
		return nil, err
	}
	return &reservingWriter{Writer: w, disks: s.disks}, nil
}

var _ Putter = (*reserving)(nil)

// Put implements Putter, if the store does.
func (s *reserving) Put(ctx context.Context, key string, size int64, r io.Reader) error {
	to, ok := s.Store.(Putter)
	err := errors.ErrUnsupported
	if ok {
		err = s.disks.Room()
	}
	if err != nil {
		return fmt.Errorf("storing object %s: %w", key, err)
	}
	return to.Put(ctx, key, size, &RoomReader{Reader: r, Room: s.disks.Room})
}

// RoomReader reads what is written to a disk. It fails with the error of Room, which it asks once for each
// 256 KiB, when there is no room for more.
type RoomReader struct {
	Reader io.Reader
	Room   func() error
	since  int64 // bytes since Room was asked
}

func (r *RoomReader) Read(p []byte) (int, error) {
	if r.since >= roomEvery {
		if err := r.Room(); err != nil {
			return 0, err
		}
		r.since = 0
	}
	n, err := r.Reader.Read(p)
	r.since += int64(n)
	return n, err
}

type reservingWriter struct {
	Writer
	disks Disks
	since int64 // bytes since the file systems were asked
}

func (w *reservingWriter) room(n int) error {
	w.since += int64(n)
	if w.since < roomEvery {
		return nil
	}
	w.since = 0
	return w.disks.Room()
}

// Write implements Writer.
func (w *reservingWriter) Write(p []byte) (int, error) {
	if err := w.room(len(p)); err != nil {
		return 0, err
	}
	return w.Writer.Write(p)
}

// ReadFrom implements Writer.
func (w *reservingWriter) ReadFrom(r io.Reader) (int64, error) {
	source := &reservingReader{r: r, w: w}
	n, err := w.Writer.ReadFrom(source)
	if source.full != nil && errors.Is(err, source.full) {
		return n, source.full
	}
	return n, err
}

// reservingReader ends when a file system has no room for more.
type reservingReader struct {
	r    io.Reader
	w    *reservingWriter
	full error
}

func (r *reservingReader) Read(p []byte) (int, error) {
	if r.full = r.w.room(len(p)); r.full != nil {
		return 0, r.full
	}
	return r.r.Read(p)
}
