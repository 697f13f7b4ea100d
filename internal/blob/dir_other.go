//go:build !linux

package blob

import (
	"errors"
	"os"
)

// syncData makes f durable.
func syncData(f *os.File) error { return f.Sync() }

// startWriteback does nothing: only Linux has a system call for it.
func startWriteback(*os.File, int64, int64) {}

// preallocate isn't possible here.
func preallocate(*os.File, int64) error { return errors.ErrUnsupported }
