//go:build !linux

package blob

import "os"

// syncData makes f durable.
func syncData(f *os.File) error { return f.Sync() }

// startWriteback does nothing: only Linux has a system call for it.
func startWriteback(*os.File, int64, int64) {}
