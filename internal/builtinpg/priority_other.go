//go:build unix && !linux

package builtinpg

import "syscall"

func lowerPriority(pid int) error {
	return syscall.Setpriority(syscall.PRIO_PROCESS, pid, backgroundNice)
}
