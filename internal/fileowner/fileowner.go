//go:build unix

// Package fileowner gives what root creates to the owner of the place. An operator runs commands of
// Purser as root on the data of a service that runs as another user, and the service must be able to
// use what the command leaves. The goroutines of a process may make the same directories at the same
// time; of two processes of root that do so, one may leave root's files in a directory that the other
// is just making.
package fileowner

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
)

// giving is held while a new directory may still have the owner that it will not keep. Else another
// goroutine, which finds the directory, would give what it makes in it to that owner: to root.
var giving sync.RWMutex

// Inherit gives a file or directory that this process has created, and has open, to the owner and
// the group of the directory in which it is. It does nothing if this process isn't root, if root owns
// the directory, or if root may not do that here, as in a container without the capability or on NFS.
func Inherit(f *os.File) error {
	if os.Geteuid() != 0 {
		return nil
	}
	giving.RLock()
	defer giving.RUnlock()
	return inherit(f)
}

func inherit(f *os.File) error {
	dir, err := os.Stat(filepath.Dir(f.Name()))
	if err != nil {
		return err
	}
	to := dir.Sys().(*syscall.Stat_t)
	if to.Uid == 0 {
		return nil
	}
	err = f.Chown(int(to.Uid), int(to.Gid))
	for _, never := range []error{syscall.EPERM, syscall.EINVAL, syscall.ENOSYS, syscall.EOPNOTSUPP} {
		if errors.Is(err, never) {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("giving %s to the owner of its directory: %w", f.Name(), err)
	}
	return nil
}

// MkdirAll creates a directory and its missing parents as os.MkdirAll does, and gives each to the owner of its
// parent, as Inherit does.
func MkdirAll(path string, mode fs.FileMode) error {
	if _, err := os.Stat(path); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := MkdirAll(filepath.Dir(path), mode); err != nil {
		return err
	}
	if err := Mkdir(path, mode); !errors.Is(err, fs.ErrExist) { // another process may be faster
		return err
	}
	return nil
}

// Mkdir creates a directory as os.Mkdir does, and gives it to the owner of its parent, as Inherit does.
func Mkdir(path string, mode fs.FileMode) error {
	if os.Geteuid() != 0 {
		return os.Mkdir(path, mode)
	}
	giving.Lock()
	defer giving.Unlock()
	if err := os.Mkdir(path, mode); err != nil {
		return err
	}
	// The parent's owner could put a link in the place of the new directory; a link isn't followed.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // only its owner is changed
	return inherit(f)
}
