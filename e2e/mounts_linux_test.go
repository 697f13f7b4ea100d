package e2e

import (
	"os/exec"
	"syscall"
)

// ownMounts has cmd see mounts of its own, which are gone with its last process.
func ownMounts(cmd *exec.Cmd) {
	cmd.SysProcAttr = endsWithParent()
	cmd.SysProcAttr.Unshareflags = syscall.CLONE_NEWNS
}
