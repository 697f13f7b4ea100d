// Package memory says how much memory this process may use, how much Go may use of
// it, and how often its own is collected.
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

// Limit is the memory that this process may use, in bytes: the machine's, or what its
// control group or GOMEMLIMIT allows if that is less. Where the system doesn't say it
// is 0.
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

// groupLimit is the least that this process's control group, or one above it, allows,
// 0: no limit. It knows both versions of control groups. root is where /proc and /sys
// are. In a container the group's name may be that of the host, and the group itself
// at the top.
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
	if limit >= math.MaxInt64>>1 { // how the first version of control groups says "no limit"
		return 0
	}
	return limit
}

// readText reads a small file of the kernel's; one that isn't there is empty.
func readText(name string) string {
	text, err := os.ReadFile(name)
	if err != nil {
		return ""
	}
	return string(text)
}

// parseBytes reads a number of units; what is no number ("max") is no limit.
func parseBytes(s string, unit int64) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n <= 0 || n > math.MaxInt64/unit {
		return math.MaxInt64
	}
	return n * unit
}
