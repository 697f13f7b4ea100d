//go:build !linux

package e2e

import "syscall"

// endsWithParent returns no special attributes: this system's kernel can't kill a child when
// its parent ends.
func endsWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }
