package builtinpg

import "syscall"

const (
	// hasDeathSignal says that the kernel signals a child when its parent dies.
	hasDeathSignal = true
	// passesDirectory says that an open descriptor can be passed as a path.
	passesDirectory = true
)

func setDeathSignal(attr *syscall.SysProcAttr, sig syscall.Signal) { attr.Pdeathsig = sig }
