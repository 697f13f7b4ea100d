package builtinpg

import (
	"syscall"

	"golang.org/x/sys/unix"
)

const schedOther = 0 // the kernel's SCHED_OTHER

// lowerPriority sets the nice value and, where the kernel has it (6.12 and newer;
// older ones ignore it), the slice.
func lowerPriority(pid int) error {
	attr, err := unix.SchedGetAttr(pid, 0)
	if err == nil && attr.Policy != schedOther {
		return nil // whoever started this process has chosen for it
	}
	if err == nil {
		attr.Nice = min(attr.Nice+backgroundNice, 19)
		attr.Runtime = backgroundSlice
		err = unix.SchedSetAttr(pid, attr, 0)
	}
	if err != nil { // a sandbox may refuse these calls
		return syscall.Setpriority(syscall.PRIO_PROCESS, pid, backgroundNice)
	}
	return nil
}
