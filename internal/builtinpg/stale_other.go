//go:build unix && !linux

package builtinpg

import (
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// seesEveryServer says that, on this system, serversOn doesn't find backends whose postmaster
// is dead. Such backends exit by themselves when they notice it.
const seesEveryServer = false

// serversOn returns the PID of the postmaster that the cluster's pid file names, if the file
// was written for this directory and the process with this PID is a PostgreSQL server.
func serversOn(cluster string) ([]int, error) {
	pm := readPostmasterFile(cluster)
	if pm.pid == 0 || filepath.Clean(pm.dir) != cluster {
		return nil, nil
	}
	out, err := exec.Command("ps", "-o", "stat=,comm=", "-p", strconv.Itoa(pm.pid)).Output()
	if err != nil { // ps fails if there is no such process
		return nil, nil
	}
	state, comm, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
	if strings.HasPrefix(state, "Z") || filepath.Base(strings.TrimSpace(comm)) != "postgres" {
		return nil, nil
	}
	return []int{pm.pid}, nil
}
