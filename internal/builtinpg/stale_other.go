//go:build unix && !linux

package builtinpg

import (
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// seesEveryServer says whether serversOn also finds backends whose postmaster is dead. On
// this operating system it doesn't; such backends exit by themselves when they notice.
const seesEveryServer = false

// serversOn returns the postmaster that the cluster's pid file names, if that process
// is a PostgreSQL started on this directory.
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
