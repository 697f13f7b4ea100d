//go:build unix

package builtinpg

import (
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"syscall"
)

// watchdogScript is a shell script that reads its input. If it reads a line, it exits; if the
// input ends without a line, the parent has died, and the script stops the server immediately.
const watchdogScript = `read -r _ && exit 0; kill -QUIT "$1"`

// watchdog is a process that stops the server when the parent dies, on systems without death
// signals.
type watchdog struct {
	cmd  *exec.Cmd
	pipe io.WriteCloser
}

// watch starts a watchdog for the process pid.
func watch(pid int) (*watchdog, error) {
	cmd := exec.Command("/bin/sh", "-c", watchdogScript, "purser-postgres-watchdog", strconv.Itoa(pid))
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("making the watchdog's pipe: %w", err)
	}
	if err := cmd.Start(); err != nil {
		pipe.Close()
		return nil, fmt.Errorf("starting the watchdog: %w", err)
	}
	return &watchdog{cmd: cmd, pipe: pipe}, nil
}

// dismiss ends the watchdog. Call it only after the watched process has exited.
func (w *watchdog) dismiss() error {
	_, writeErr := io.WriteString(w.pipe, "done\n")
	closeErr := w.pipe.Close()
	if err := w.cmd.Wait(); err != nil {
		return fmt.Errorf("ending the watchdog: %w", err)
	}
	if writeErr != nil {
		return fmt.Errorf("ending the watchdog: %w", writeErr)
	}
	return closeErr
}
