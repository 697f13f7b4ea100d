package builtinpg

import (
	"bytes"
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

const (
	// reapEvery is how long a child must have been a zombie before reapOrphans takes it for an
	// orphan.
	reapEvery = time.Second
	// reapRest is the time between checks while no child dies. The kernel signals the death of
	// a child, so these checks are only for lost signals.
	reapRest = time.Minute
)

// reapOrphans reaps dead processes whose parents have died and that became children of this
// process because it is PID 1, such as the backends of a killed postmaster. The code that has
// started a child waits for it itself. Therefore reapOrphans reaps only zombies for which
// nobody has waited for a whole reapEvery, and never the child with the PID `spared`. It sleeps
// while there are no zombies, and returns when `stop` is closed.
func reapOrphans(stop <-chan struct{}, spared int) {
	died := make(chan os.Signal, 1)
	signal.Notify(died, syscall.SIGCHLD)
	defer signal.Stop(died)
	look := time.NewTimer(reapEvery)
	defer look.Stop()
	var before map[int]bool
	resting := false
	for {
		select {
		case <-stop:
			return
		case <-died:
			if resting {
				resting = false
				look.Reset(reapEvery)
			}
			continue
		case <-look.C:
		}
		before = reap(before, spared)
		resting = len(before) == 0
		if resting {
			look.Reset(reapRest)
		} else {
			look.Reset(reapEvery)
		}
	}
}

// reap reaps the zombies whose PIDs are in `before`, the result of the previous call, and
// returns the PIDs of the other zombies. It never reaps the PID `spared`.
func reap(before map[int]bool, spared int) map[int]bool {
	now := map[int]bool{}
	for _, pid := range zombieChildren() {
		if pid == spared {
			continue
		}
		if !before[pid] {
			now[pid] = true
			continue
		}
		for {
			_, err := syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
			if !errors.Is(err, syscall.EINTR) {
				break
			}
		}
	}
	return now
}

// zombieChildren returns the PIDs of this process's children that have exited and for which
// nobody has waited.
func zombieChildren() []int {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil
	}
	self := strconv.Itoa(os.Getpid())
	var pids []int
	for _, path := range stats {
		raw, err := os.ReadFile(path)
		if err != nil {
			continue // the process is gone
		}
		// The line is "pid (comm) state ppid …"; comm may contain anything, even
		// parentheses.
		end := bytes.LastIndexByte(raw, ')')
		fields := bytes.Fields(raw[end+1:])
		if end < 0 || len(fields) < 2 || string(fields[0]) != "Z" || string(fields[1]) != self {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}
