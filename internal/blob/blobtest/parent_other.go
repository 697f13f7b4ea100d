//go:build !linux

package blobtest

import "syscall"

// endsWithParent does nothing: only Linux can do it.
func endsWithParent() *syscall.SysProcAttr { return nil }
