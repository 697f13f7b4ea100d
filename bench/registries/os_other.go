//go:build !linux

package registries

import "time"

// Without /proc there is nothing to measure a process by.

func preciseCPU(int) (time.Duration, bool) { return 0, false }

func selfCPU() (time.Duration, bool) { return 0, false }

func flush() {}
