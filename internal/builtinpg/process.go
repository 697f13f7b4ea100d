//go:build unix

package builtinpg

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// keptEnvironment is all that PostgreSQL's programs get to see: not PGDATA,
// which would mislead them, not NOTIFY_SOCKET, on which they would report
// themselves ready to systemd in their parent's place, and no secrets.
var keptEnvironment = []string{"PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH"}

func environment() []string {
	env := []string{"LC_ALL=C", "LANG=C", "TZ=UTC"}
	for _, name := range keptEnvironment {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// prepare sets up one of PostgreSQL's programs: credentials dropped, a process
// group of its own (so that a terminal's ^C reaches only the parent), and the
// death signal. The caller must start it from a locked thread that outlives it:
// the death signal is sent when the thread that forked ends.
func prepare(cmd *exec.Cmd, acct *account, death syscall.Signal) {
	cmd.Env = environment()
	cmd.Dir = "/" // PostgreSQL 15 returns to where it started, which its user may not enter
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: acct.credential()}
	setDeathSignal(cmd.SysProcAttr, death)
}

// onCluster adds -D for a directory. For another user, whom a directory above
// may keep out, the directory is passed as an open descriptor. Close the result
// once the program has been started.
func onCluster(cmd *exec.Cmd, acct *account, dir string) (*os.File, error) {
	f, err := os.OpenFile(dir, os.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return nil, fmt.Errorf("opening the cluster: %w", err)
	}
	arg := dir
	if acct != nil && passesDirectory {
		cmd.ExtraFiles = append(cmd.ExtraFiles, f)
		arg = fmt.Sprintf("/proc/self/fd/%d", 2+len(cmd.ExtraFiles))
	}
	cmd.Args = append(cmd.Args, "-D", arg)
	return f, nil
}
