//go:build unix

package builtinpg

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/purser-registry/purser/internal/fileowner"
)

// lock is the ownership of a data directory: an flock on a file in it. The kernel releases it
// when the process ends, so no stale lock can remain. The file is never removed, because
// otherwise two processes could lock two different files of the same name.
type lock struct {
	file *os.File
	// socketDir is the directory of the server's socket as the previous owner wrote it into
	// the lock file.
	socketDir string
}

// elsewhere is the way out of a data directory that can't be used.
const elsewhere = "choose another data directory with --data-dir DIR (data_dir)"

// acquire locks the data directory dir. It doesn't wait: it returns ErrInUse if another owner
// has the lock.
func acquire(dir string) (*lock, error) {
	path := filepath.Join(dir, lockName)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if errors.Is(err, fs.ErrPermission) {
		return nil, fmt.Errorf("opening the lock of the PostgreSQL data directory: %w; the directory belongs to %s: run as that user, or %s", err, ownerOf(dir), elsewhere)
	}
	if err != nil {
		return nil, fmt.Errorf("opening the lock of the PostgreSQL data directory: %w", err)
	}
	if err := fileowner.Inherit(f); err != nil {
		f.Close()
		return nil, fmt.Errorf("opening the lock of the PostgreSQL data directory: %w", err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		pid, _ := readLock(path)
		f.Close()
		return nil, fmt.Errorf("%w: %s is owned by %s; stop that process, or %s", ErrInUse, dir, pid, elsewhere)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("locking %s: %w", path, err)
	}
	_, socketDir := readLock(path)
	return &lock{file: f, socketDir: socketDir}, nil
}

// publish writes this process's PID into the lock file and, once it is known, the directory of
// the socket.
func (l *lock) publish(socketDir string) error {
	content := strconv.Itoa(os.Getpid()) + "\n" + socketDir + "\n"
	if err := l.file.Truncate(0); err != nil {
		return fmt.Errorf("writing %s: %w", l.file.Name(), err)
	}
	if _, err := l.file.WriteAt([]byte(content), 0); err != nil {
		return fmt.Errorf("writing %s: %w", l.file.Name(), err)
	}
	return nil
}

// release unlocks the data directory. It unlocks the file before it closes it: a child process
// that is just being started still has the descriptor, until its exec, and would keep the
// lock.
func (l *lock) release() error {
	return errors.Join(l.file.Truncate(0), unix.Flock(int(l.file.Fd()), unix.LOCK_UN), l.file.Close())
}

// readLock returns what the lock file says: its owner, as "process 123", and the directory of
// the socket, "" if the file doesn't have it.
func readLock(path string) (owner, socketDir string) {
	owner = "another process"
	raw, err := os.ReadFile(path)
	if err != nil {
		return owner, ""
	}
	pid, rest, _ := strings.Cut(string(raw), "\n")
	if _, err := strconv.Atoi(pid); err == nil {
		owner = "process " + pid
	}
	return owner, strings.TrimSuffix(rest, "\n")
}

// ownerOf names the user who owns a file, for messages.
func ownerOf(path string) string {
	fi, err := os.Stat(path)
	if err != nil {
		return "another user"
	}
	return fmt.Sprintf("uid %d", fi.Sys().(*syscall.Stat_t).Uid)
}

// prepareDataDir creates the directory and returns its absolute path without symbolic
// links, so that all processes use the same path.
func prepareDataDir(dir string) (string, error) {
	if dir == "" {
		return "", errors.New("no data directory given for PostgreSQL")
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("resolving the data directory %s: %w", dir, err)
	}
	if err := fileowner.MkdirAll(filepath.Dir(abs), 0o755); err != nil {
		return "", fmt.Errorf("making the parent of the data directory: %w; %s", err, elsewhere)
	}
	mode := os.FileMode(0o700)
	if os.Geteuid() == 0 && !passesDirectory {
		mode = 0o711 // PostgreSQL's user must be able to traverse it
	}
	if err := fileowner.Mkdir(abs, mode); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("making the data directory: %w; %s", err, elsewhere)
	}
	if abs, err = filepath.EvalSymlinks(abs); err != nil {
		return "", fmt.Errorf("resolving the data directory: %w", err)
	}
	if _, err := os.Lstat(filepath.Join(abs, "PG_VERSION")); err == nil {
		return "", fmt.Errorf("%s is itself a PostgreSQL cluster that Purser did not make: %s, or start that cluster and name it in database.main", abs, elsewhere)
	}
	return abs, nil
}
