package clock

import (
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

func thisMachine() machine {
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id") // without it, restarts can't be compared
	return machine{strings.TrimSpace(string(boot)), uptime(time.Now()), wall, synchronized}
}

// uptime returns a function that reads CLOCK_BOOTTIME, which counts the time of suspension too.
// Without it the function returns the time since begun, by Go's monotonic clock.
func uptime(begun time.Time) func() time.Duration {
	return func() time.Duration {
		var t unix.Timespec
		if unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) != nil {
			return time.Since(begun)
		}
		return time.Duration(t.Nano())
	}
}

// wall returns the time without Go's monotonic reading, so that two times differ as the clock does.
func wall() time.Time { return time.Now().Round(0) }

// synchronized asks the kernel. It forgets that its clock is synchronized when somebody sets it.
func synchronized() bool {
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	return err == nil && state != unix.TIME_ERROR && t.Status&unix.STA_UNSYNC == 0
}
