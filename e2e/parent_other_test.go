//go:build !linux

package e2e

import "syscall"

// endsWithParent has nothing to offer where the kernel doesn't tell children of
// their parent's death.
func endsWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }
