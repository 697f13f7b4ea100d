package password

import (
	"os/exec"
	"runtime"
	"syscall"
)

// niceness of processes that compute hashes: the kernel then prefers the threads that serve
// requests, and still gives hashes about a tenth of a processor if all are busy.
const niceness = 10

// startLow starts a command at low priority and in a process group of its own, so that an
// interrupt from the terminal doesn't end it before the registry.
func startLow(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	started := make(chan error)
	go func() {
		// On Linux the niceness belongs to a thread, and a new process gets that of the thread
		// which starts it. The goroutine doesn't unlock the thread, so the thread ends with it.
		runtime.LockOSThread()
		if syscall.Gettid() == syscall.Getpid() {
			// The main thread never ends, so it must not get the niceness. While it is locked,
			// another goroutine runs on another thread.
			defer runtime.UnlockOSThread()
			started <- startLow(cmd)
			return
		}
		// Getpriority returns 20 minus the niceness. A process may always raise its niceness.
		if priority, err := syscall.Getpriority(syscall.PRIO_PROCESS, 0); err == nil && priority > 20-niceness {
			_ = syscall.Setpriority(syscall.PRIO_PROCESS, 0, niceness)
		}
		started <- cmd.Start()
	}()
	return <-started
}
