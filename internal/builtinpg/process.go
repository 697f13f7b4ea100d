//go:build unix

package builtinpg

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// keptEnvironment are the only variables that PostgreSQL's programs inherit. Others would do
// harm: PGDATA names another cluster, NOTIFY_SOCKET would let the server report to systemd in
// place of its parent, and some may be secrets.
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

// prepare configures the command of a PostgreSQL program. The program runs as the account
// `acct`, in a process group of its own (so that ^C in a terminal reaches only the parent), and
// the kernel sends it the signal `death` when the parent dies. The kernel sends this signal
// already when the thread that forked ends, so the caller must start the command from a locked
// thread that lives longer than the program.
func prepare(cmd *exec.Cmd, acct *account, death syscall.Signal) {
	cmd.Env = environment()
	cmd.Dir = "/" // PostgreSQL 15 changes back to its working directory, which its user may not enter
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: acct.credential()}
	setDeathSignal(cmd.SysProcAttr, death)
}

// onCluster adds the option -D for a directory to the command. If the program runs as another
// user, who may be unable to traverse the directories above, it gets the directory as an open
// descriptor. The caller closes the returned file after it has started the program.
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
