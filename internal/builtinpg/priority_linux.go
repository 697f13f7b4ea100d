package builtinpg

import "golang.org/x/sys/unix"

const schedOther = 0 // the kernel's SCHED_OTHER

// setSlice sets how long a process asks to run at a stretch, ns. The nice value
// stays: with fewer shares of the cores the process would hold its locks for longer,
// and where sessions are scheduled as groups it changes nothing.
func setSlice(pid int, slice uint64) error {
	attr, err := unix.SchedGetAttr(pid, 0)
	if err != nil || attr.Policy != schedOther { // whoever chose another has a reason
		return err
	}
	attr.Runtime = slice // kernels before 6.12 ignore it
	return unix.SchedSetAttr(pid, attr, 0)
}
