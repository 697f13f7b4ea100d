//go:build !unix

package serve

// descriptorLimit returns 0: the limit is unknown on this system.
func descriptorLimit() int { return 0 }
