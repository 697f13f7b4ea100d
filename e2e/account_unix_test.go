//go:build unix

package e2e

import (
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"syscall"
	"testing"
)

// unprivileged makes cmd run as another user if this process runs as root, because PostgreSQL
// refuses to run as root. It also makes that user the owner of the directory dir.
func unprivileged(t testing.TB, cmd *exec.Cmd, dir string) {
	t.Helper()
	cmd.SysProcAttr = endsWithParent()
	if os.Getuid() != 0 {
		return
	}
	uid, gid := 65534, 65534
	if u, err := user.Lookup("postgres"); err == nil {
		uid, _ = strconv.Atoi(u.Uid)
		gid, _ = strconv.Atoi(u.Gid)
	}
	if err := os.Chown(dir, uid, gid); err != nil {
		t.Fatalf("giving PostgreSQL its directory: %v", err)
	}
	cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}
