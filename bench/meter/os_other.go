//go:build !linux

package meter

import "time"

// These systems have no /proc, so no processes can be measured.

func preciseCPU(int) (time.Duration, bool) { return 0, false }

func SelfCPU() (time.Duration, bool) { return 0, false }

func Flush() {}
