//go:build unix

package builtinpg

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	pidFile   = "postmaster.pid"
	pollEvery = 10 * time.Millisecond // PostgreSQL reports its state only in a file
)

// postmasterFile has the content of the file postmaster.pid, which PostgreSQL writes into the
// cluster.
type postmasterFile struct {
	pid   int
	dir   string // as passed with -D
	ready bool
}

// readPostmasterFile parses postmaster.pid. It returns the zero value if the file is
// missing or incomplete.
func readPostmasterFile(cluster string) postmasterFile {
	raw, err := os.ReadFile(filepath.Join(cluster, pidFile))
	if err != nil {
		return postmasterFile{}
	}
	lines := strings.Split(string(raw), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(lines[0]))
	if err != nil || pid <= 0 || len(lines) < 2 {
		return postmasterFile{}
	}
	const statusLine = 7 // LOCK_FILE_LINE_PM_STATUS - 1
	ready := len(lines) > statusLine && strings.TrimSpace(lines[statusLine]) == "ready"
	return postmasterFile{pid: pid, dir: lines[1], ready: ready}
}

// stopStale stops the PostgreSQL processes that an earlier owner left running on the cluster:
// a server, or the backends of a killed server, which still use its shared memory. The caller
// holds the data directory's lock, so no living owner uses these processes.
func stopStale(ctx context.Context, log *slog.Logger, cluster string) error {
	steps := []struct {
		sig  syscall.Signal
		wait time.Duration
	}{{syscall.SIGINT, 10 * time.Second}, {syscall.SIGQUIT, 6 * time.Second}, {syscall.SIGKILL, 5 * time.Second}}

	for _, step := range steps {
		pids, err := serversOn(cluster)
		if err != nil {
			return fmt.Errorf("looking for a PostgreSQL left behind on %s: %w", cluster, err)
		}
		if len(pids) == 0 {
			return removeStaleFiles(cluster)
		}
		log.WarnContext(ctx, "stopping a PostgreSQL that was left behind", "dir", cluster, "pids", pids, "signal", step.sig.String())
		for _, pid := range targets(cluster, pids, step.sig) {
			if err := syscall.Kill(pid, step.sig); err != nil && !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("stopping the PostgreSQL left behind on %s (process %d): %w; stop it by hand", cluster, pid, err)
			}
		}
		if err := awaitNoServers(ctx, cluster, step.wait); err != nil {
			return err
		}
	}
	pids, err := serversOn(cluster)
	if err == nil && len(pids) > 0 {
		err = fmt.Errorf("processes %v survive SIGKILL", pids)
	}
	if err != nil {
		return fmt.Errorf("stopping the PostgreSQL left behind on %s: %w", cluster, err)
	}
	return removeStaleFiles(cluster)
}

// targets returns the PIDs of the processes to which stopStale sends the signal `sig`. If the
// postmaster lives and `sig` isn't SIGKILL, this is the postmaster alone, which signals its
// children itself; otherwise it is all of `pids`.
func targets(cluster string, pids []int, sig syscall.Signal) []int {
	if pm := readPostmasterFile(cluster).pid; sig != syscall.SIGKILL && slices.Contains(pids, pm) {
		return []int{pm}
	}
	return pids
}

// awaitNoServers waits until no PostgreSQL process runs on the cluster, at most for `wait`.
func awaitNoServers(ctx context.Context, cluster string, wait time.Duration) error {
	deadline := time.NewTimer(wait)
	defer deadline.Stop()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		pids, err := serversOn(cluster)
		if err != nil || len(pids) == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for the PostgreSQL left behind on %s to stop: %w", cluster, ctx.Err())
		case <-deadline.C:
			return nil
		case <-tick.C:
		}
	}
}

// removeStaleFiles removes the pid files and the socket of a server that is certainly dead. If
// they stayed, and another process had got the dead server's PID, as happens in a container at
// every restart, PostgreSQL would take that process for a running server.
func removeStaleFiles(cluster string) error {
	if !seesEveryServer {
		return nil
	}
	for _, name := range []string{pidFile, socketFile + ".lock", socketFile} {
		if err := os.Remove(filepath.Join(cluster, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("removing the files of a PostgreSQL that was killed: %w", err)
		}
	}
	return nil
}
