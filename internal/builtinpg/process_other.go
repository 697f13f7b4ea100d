//go:build unix && !linux

package builtinpg

import "syscall"

const (
	hasDeathSignal  = false
	passesDirectory = false
)

func setDeathSignal(*syscall.SysProcAttr, syscall.Signal) {}
