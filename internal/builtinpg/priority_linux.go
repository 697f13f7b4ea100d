package builtinpg

import "golang.org/x/sys/unix"

const (
	schedOther = 0 // the kernel's SCHED_OTHER
	// backgroundSlice is how long a process in the background asks to run at a
	// stretch. The kernel lets one that asks for less, as all do by default, run as
	// soon as it wakes. More would keep this one waiting for longer at a stretch, too.
	backgroundSlice = 20_000_000 // ns
)

// yieldReadily sets the slice. The nice value stays: with fewer shares of the cores
// the process would hold its locks for longer, and where sessions are scheduled as
// groups it changes nothing.
func yieldReadily(pid int) error {
	attr, err := unix.SchedGetAttr(pid, 0)
	if err != nil || attr.Policy != schedOther { // whoever chose another has a reason
		return err
	}
	attr.Runtime = backgroundSlice // kernels before 6.12 ignore it
	return unix.SchedSetAttr(pid, attr, 0)
}
