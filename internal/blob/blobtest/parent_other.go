//go:build !linux

package blobtest

import "syscall"

// endsWithParent does nothing: only Linux supports this.
func endsWithParent() *syscall.SysProcAttr { return nil }
