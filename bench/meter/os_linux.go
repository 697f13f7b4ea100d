package meter

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// preciseCPU reads a process's CPU clock: all its threads, ended ones included,
// in nanoseconds, where /proc has hundredths of a second.
func preciseCPU(pid int) (time.Duration, bool) {
	// CPUCLOCK_SCHED of a whole process: clock_getcpuclockid(3) as the kernel's
	// posix-timers.h encodes it.
	const sched = 2
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^pid)<<3|sched, &ts); err != nil {
		return 0, false
	}
	return time.Duration(ts.Nano()), true
}

// SelfCPU returns the CPU time that this process has used.
func SelfCPU() (time.Duration, bool) {
	var ru syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &ru); err != nil {
		return 0, false
	}
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano()), true
}

// Flush writes the system's dirty pages to disk, so that no server pays for the writes of
// the server that was measured before it.
func Flush() { unix.Sync() }
