// Package memory finds out how much memory this process may use, and tunes Go's garbage
// collector to it.
package memory

import (
	"math"
	"os"
	"path"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
)

// Limit returns how much memory this process may use, in bytes: the machine's memory,
// or the limit of its cgroup or of GOMEMLIMIT if that is lower. It returns 0 if the
// system doesn't say.
func Limit() int64 {
	limit := int64(math.MaxInt64)
	for line := range strings.SplitSeq(readText("/proc/meminfo"), "\n") {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "MemTotal:" {
			limit = min(limit, parseBytes(f[1], 1<<10))
		}
	}
	if n := groupLimit("/"); n > 0 {
		limit = min(limit, n)
	}
	if os.Getenv("GOMEMLIMIT") != "" {
		limit = min(limit, debug.SetMemoryLimit(-1))
	}
	if limit == math.MaxInt64 {
		return 0
	}
	return limit
}

// groupLimit returns the lowest limit of this process's cgroup and those above it, 0:
// no limit. It supports both versions of cgroups. root is the directory with /proc and
// /sys. In a container the cgroup's name may be that on the host, while the cgroup
// itself is at the top, so groupLimit looks there too.
func groupLimit(root string) int64 {
	limit := int64(math.MaxInt64)
	look := func(top, group, file string) {
		for dir := path.Clean("/" + group); ; dir = path.Dir(dir) {
			text := readText(filepath.Join(root, top, dir, file))
			limit = min(limit, parseBytes(strings.TrimSpace(text), 1))
			if dir == "/" {
				return
			}
		}
	}
	const unified, memory = "sys/fs/cgroup", "sys/fs/cgroup/memory"
	look(unified, "/", "memory.max")
	look(memory, "/", "memory.limit_in_bytes")
	for line := range strings.SplitSeq(readText(filepath.Join(root, "proc/self/cgroup")), "\n") {
		switch f := strings.SplitN(line, ":", 3); {
		case len(f) < 3:
		case f[0] == "0":
			look(unified, f[2], "memory.max")
		case f[1] == "memory":
			look(memory, f[2], "memory.limit_in_bytes")
		}
	}
	if limit >= math.MaxInt64>>1 { // cgroups version 1 has such values for "no limit"
		return 0
	}
	return limit
}

// readText reads a small file of the kernel. A missing file counts as empty.
func readText(name string) string {
	text, err := os.ReadFile(name)
	if err != nil {
		return ""
	}
	return string(text)
}

// parseBytes parses a number of units. Text that isn't a number ("max") means no limit.
func parseBytes(s string, unit int64) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n <= 0 || n > math.MaxInt64/unit {
		return math.MaxInt64
	}
	return n * unit
}
