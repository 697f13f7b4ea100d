//go:build unix

package builtinpg

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// keptEnvironment are the only variables that PostgreSQL's programs inherit. PGDATA
// would mislead them, with NOTIFY_SOCKET they would report to systemd in place of their
// parent, and other variables may be secrets.
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

// prepare configures a command for one of PostgreSQL's programs: it drops credentials,
// sets a process group of its own (so that ^C in a terminal reaches only the parent),
// and the death signal. The kernel sends the death signal when the thread that forked
// ends, so the caller must start the command from a locked thread that outlives it.
func prepare(cmd *exec.Cmd, acct *account, death syscall.Signal) {
	cmd.Env = environment()
	cmd.Dir = "/" // PostgreSQL 15 changes back to its working directory, which its user may not enter
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: acct.credential()}
	setDeathSignal(cmd.SysProcAttr, death)
}

// onCluster adds -D for a directory. If the program runs as another user, who may be
// unable to traverse the directories above, it gets the directory as an open
// descriptor. The caller closes the result after starting the program.
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
