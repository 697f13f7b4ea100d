package e2e

import (
	"os/exec"
	"syscall"
)

// ownMounts makes cmd run in a mount namespace of its own, whose mounts end with the last
// process in it.
func ownMounts(cmd *exec.Cmd) {
	cmd.SysProcAttr = endsWithParent()
	cmd.SysProcAttr.Unshareflags = syscall.CLONE_NEWNS
}
