package builtinpg

import "syscall"

const (
	// hasDeathSignal: the kernel signals a child when its parent dies.
	hasDeathSignal = true
	// passesDirectory: a descriptor can be given as a path.
	passesDirectory = true
)

func setDeathSignal(attr *syscall.SysProcAttr, sig syscall.Signal) { attr.Pdeathsig = sig }
