package builtinpg

import "golang.org/x/sys/unix"

const schedOther = 0 // the kernel's SCHED_OTHER

// setSlice sets the time slice that a process requests from the scheduler, in ns. It doesn't
// change the nice value: with a smaller share of the CPU the process would hold its locks
// longer, and between Unix sessions the nice value has no effect if the kernel schedules each
// session as a group (autogroup).
func setSlice(pid int, slice uint64) error {
	attr, err := unix.SchedGetAttr(pid, 0)
	if err != nil || attr.Policy != schedOther { // another policy was chosen deliberately
		return err
	}
	attr.Runtime = slice // kernels before 6.12 ignore it
	return unix.SchedSetAttr(pid, attr, 0)
}
