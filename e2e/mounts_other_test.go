//go:build !linux

package e2e

import "os/exec"

// ownMounts does nothing on this system: only Linux has mount namespaces.
func ownMounts(*exec.Cmd) {}
