package e2e

import (
	"os/exec"
	"syscall"
)

// ownMounts runs cmd in a mount namespace of its own, whose mounts end with cmd's last process.
func ownMounts(cmd *exec.Cmd) {
	cmd.SysProcAttr = endsWithParent()
	cmd.SysProcAttr.Unshareflags = syscall.CLONE_NEWNS
}
