package blobtest

import "syscall"

// endsWithParent makes the kernel kill a child when its parent dies.
func endsWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
