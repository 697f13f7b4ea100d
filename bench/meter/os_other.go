//go:build !linux

package meter

import "time"

// These systems have no /proc, from which processes are measured.

func preciseCPU(int) (time.Duration, bool) { return 0, false }

func SelfCPU() (time.Duration, bool) { return 0, false }

func Flush() {}
