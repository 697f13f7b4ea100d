package e2e

import "syscall"

// endsWithParent makes the kernel kill a child when its parent ends, so that an interrupted
// test leaves no processes running.
func endsWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
