package meter

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// preciseCPU returns the CPU time that the process has used so far, that of its ended threads
// included. It reads the process's CPU clock, which counts nanoseconds; /proc has only
// hundredths of a second.
func preciseCPU(pid int) (time.Duration, bool) {
	// The clock's id is CPUCLOCK_SCHED for the whole process, encoded as in the kernel's
	// posix-timers.h (clock_getcpuclockid(3)).
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

// Flush writes the system's dirty pages to disk, so that the measurement of the next server
// doesn't include disk writes of the previous one.
func Flush() { unix.Sync() }
