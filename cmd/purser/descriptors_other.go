//go:build !unix

package main

// descriptorLimit is unknown here.
func descriptorLimit() int { return 0 }
