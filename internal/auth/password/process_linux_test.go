package password

import (
	"os"
	"syscall"
	"testing"
)

// TestProcessesOfLowPriority: the kernel must prefer the threads that serve requests.
func TestProcessesOfLowPriority(t *testing.T) {
	t.Parallel()
	var p processes
	h := NewHasher(HasherOptions{Workers: 1, Command: p.command})
	defer h.Close()
	_, err := h.Hash(t.Context(), "correct horse")
	must(t, err)
	// The system call returns 20 minus the niceness.
	of, err := syscall.Getpriority(syscall.PRIO_PROCESS, p.last[0].Process.Pid)
	must(t, err)
	if own, err := syscall.Getpriority(syscall.PRIO_PROCESS, os.Getpid()); err != nil || of != min(own, 10) {
		t.Errorf("the process has priority %d, this one %d (%v)", of, own, err)
	}
}
