// Package memory finds out how much memory this process may use, and tunes Go's garbage
// collector to it.
//
// It is a package of its own because three packages that don't import each other need the size of
// the machine's memory: config for the defaults of limits, builtinpg for PostgreSQL's buffers, and
// the command serve for Go's own collector.
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

// Limit returns how many bytes of memory this process may use: the machine's memory, or the
// limit of the process's cgroup or of GOMEMLIMIT if that is lower. It returns 0 if the system
// reports none of them.
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

// groupLimit returns the lowest memory limit of this process's cgroup and of the cgroups above
// it, in bytes; 0 means no limit. It supports versions 1 and 2 of cgroups. `root` is the
// directory with /proc and /sys. In a container, /proc may show the cgroup's path on the host,
// while the cgroup's files are directly in /sys/fs/cgroup, so groupLimit looks there too.
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

// readText returns the content of a small file in /proc or /sys, "" if the file doesn't exist.
func readText(name string) string {
	text, err := os.ReadFile(name)
	if err != nil {
		return ""
	}
	return string(text)
}

// parseBytes parses a number and multiplies it by `unit`. For text that isn't a positive number,
// such as "max", it returns the largest int64, which means no limit.
func parseBytes(s string, unit int64) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n <= 0 || n > math.MaxInt64/unit {
		return math.MaxInt64
	}
	return n * unit
}
