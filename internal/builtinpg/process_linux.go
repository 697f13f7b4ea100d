package builtinpg

import "syscall"

const (
	// hasDeathSignal says that this system's kernel can send a signal to a child when the
	// child's parent dies.
	hasDeathSignal = true
	// passesDirectory says that a child can open a directory by the path of an inherited
	// descriptor, /proc/self/fd/N.
	passesDirectory = true
)

func setDeathSignal(attr *syscall.SysProcAttr, sig syscall.Signal) { attr.Pdeathsig = sig }
