// Package memory says how much memory this process may use, and how often its own
// is collected.
package memory

import (
	"math"
	"os"
	"strconv"
	"strings"
)

// Limit is the memory that this process may use, in bytes: the machine's,
// or what its control group allows if that is less. Where the system doesn't say
// it is 0.
func Limit() int64 {
	limit := int64(math.MaxInt64)
	for line := range strings.SplitSeq(readText("/proc/meminfo"), "\n") {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "MemTotal:" {
			limit = min(limit, parseBytes(f[1], 1<<10))
		}
	}
	files := []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}
	for line := range strings.SplitSeq(readText("/proc/self/cgroup"), "\n") {
		switch f := strings.SplitN(line, ":", 3); {
		case len(f) < 3:
		case f[0] == "0":
			files = append(files, "/sys/fs/cgroup"+f[2]+"/memory.max")
		case f[1] == "memory":
			files = append(files, "/sys/fs/cgroup/memory"+f[2]+"/memory.limit_in_bytes")
		}
	}
	for _, name := range files {
		limit = min(limit, parseBytes(strings.TrimSpace(readText(name)), 1))
	}
	if limit == math.MaxInt64 {
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
