package e2e

import "syscall"

// endsWithParent has the kernel kill a child whose parent is gone, so that an
// interrupted test leaves nothing behind.
func endsWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
