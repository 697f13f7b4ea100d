//go:build unix

package serve

import (
	"math"
	"syscall"
)

// descriptorLimit returns how many files this process may have open (its soft limit), or 0
// if this is unknown. The Go runtime has already raised the soft limit as far as possible.
func descriptorLimit() int {
	var r syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r); err != nil {
		return 0
	}
	return int(min(uint64(r.Cur), math.MaxInt32)) //nolint:unconvert // it is signed on some systems
}
