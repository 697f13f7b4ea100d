//go:build !linux

package e2e

import "syscall"

// endsWithParent returns nil: this system's kernel can't kill a child when its parent ends.
func endsWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }
