package blobtest

import "syscall"

// endsWithParent has the kernel end a child whose parent was killed.
func endsWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
