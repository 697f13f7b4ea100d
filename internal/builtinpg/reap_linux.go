package builtinpg

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// reapEvery is also how long a zombie must have been one to be taken for an
// orphan.
const reapEvery = time.Second

// reapOrphans collects dead processes that became children of this one because
// it is PID 1, such as the backends of a killed postmaster. A child that this
// process started itself is collected by whoever waits for it: only zombies
// that nobody wants for a whole interval, and never spared, are reaped. It
// returns when stop is closed.
func reapOrphans(stop <-chan struct{}, spared int) {
	tick := time.NewTicker(reapEvery)
	defer tick.Stop()
	var before map[int]bool
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
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
		before = now
	}
}

// zombieChildren lists this process's children that have exited and that no
// one has waited for.
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
			continue // it has gone
		}
		// pid (comm) state ppid …; comm may hold anything, parentheses too.
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
