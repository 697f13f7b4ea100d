package builtinpg

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// seesEveryServer says that, on this system, serversOn also finds backends whose postmaster is
// dead.
const seesEveryServer = true

// serversOn returns the PIDs of the PostgreSQL processes that run on the cluster, which is
// their working directory. It leaves out zombies.
func serversOn(cluster string) ([]int, error) {
	dir, err := os.Stat(cluster)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("listing processes: %w", err)
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		// A process of another user can't be inspected. But a server on this cluster runs as
		// the cluster's owner, so such a process isn't one.
		cwd, err := os.Stat(filepath.Join("/proc", e.Name(), "cwd"))
		if err != nil || !os.SameFile(cwd, dir) {
			continue
		}
		exe, err := os.Readlink(filepath.Join("/proc", e.Name(), "exe"))
		if err == nil && filepath.Base(strings.TrimSuffix(exe, " (deleted)")) == "postgres" {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}
