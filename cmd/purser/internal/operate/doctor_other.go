//go:build !linux

package operate

// spaceOf knows nothing of file systems here.
func spaceOf(string) (space, error) { return space{}, nil }

// descriptorLimit isn't known here.
func descriptorLimit() int { return 0 }
