//go:build !linux

package e2e

import "os/exec"

// ownMounts does nothing: only Linux has namespaces of mounts.
func ownMounts(*exec.Cmd) {}
