package memory

import (
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"
)

// The test's cgroups, of both versions, have limits at several levels. groupLimit must return
// the lowest limit of the process's cgroup and of those above it.
func TestGroupLimit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"none": {map[string]string{"proc/self/cgroup": "0::/\n"}, 0},
		"second, a container's": {map[string]string{
			"proc/self/cgroup": "0::/host/name\n", "sys/fs/cgroup/memory.max": "536870912\n"}, 512 << 20},
		"second, a service's": {map[string]string{
			"proc/self/cgroup": "0::/system.slice/purser.service\n", "sys/fs/cgroup/system.slice/purser.service/memory.max": "1073741824\n"}, 1 << 30},
		"second, a slice's": {map[string]string{
			"proc/self/cgroup": "0::/a.slice/purser.service\n", "sys/fs/cgroup/a.slice/purser.service/memory.max": "max\n",
			"sys/fs/cgroup/a.slice/memory.max": "268435456\n"}, 256 << 20},
		"first": {map[string]string{
			"proc/self/cgroup": "5:memory:/docker/x\n4:cpu:/y\n", "sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes": "134217728\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, 128 << 20},
		"first, no limit": {map[string]string{
			"proc/self/cgroup": "5:memory:/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, 0},
	} {
		root := t.TempDir()
		for file, text := range c.files {
			file = filepath.Join(root, file)
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got := groupLimit(root); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

func TestSoftLimit(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		group        int64
		withPostgres bool
		want         int64
	}{{0, false, 0}, {1000, false, 900}, {1000, true, 600}} {
		if got := softLimit(c.group, c.withPostgres); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}

// TestSetLimitChosen: with GOMEMLIMIT set, SetLimit changes nothing.
func TestSetLimitChosen(t *testing.T) {
	t.Setenv("GOMEMLIMIT", "1GiB")
	before := debug.SetMemoryLimit(-1)
	if n := SetLimit(false); n != 0 || debug.SetMemoryLimit(-1) != before {
		t.Errorf("the limit was set to %d", n)
	}
}
