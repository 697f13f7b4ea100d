package memory

import (
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

func TestShare(t *testing.T) {
	t.Parallel()
	for limit, want := range map[int64]int64{0: 64 << 20, 512 << 20: 16 << 20, 1 << 40: 64 << 20} {
		if got := share(limit); got != want {
			t.Errorf("with %d MiB of memory %d MiB are held, want %d", limit>>20, got>>20, want>>20)
		}
	}
}

var garbage []byte

// collections allocates half a gigabyte of garbage and returns how often Go collected
// meanwhile.
func collections() uint32 {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for range 1 << 13 {
		garbage = make([]byte, 64<<10)
	}
	runtime.ReadMemStats(&after)
	return after.NumGC - before.NumGC
}

func TestHoldHeap(t *testing.T) {
	t.Setenv("GOGC", "")
	t.Setenv("GOMEMLIMIT", "")
	t.Cleanup(func() { held = nil })
	without := collections()
	n := HoldHeap()
	if n < 1<<20 || n != int64(len(held)) {
		t.Fatalf("%d bytes are held, and said to be %d", len(held), n)
	}
	if with := collections(); with == 0 || with > without/2 {
		t.Errorf("half a gigabyte of garbage was collected %d times, and %d times before", with, without)
	}
}

func TestHoldHeapChosen(t *testing.T) {
	for _, name := range []string{"GOGC", "GOMEMLIMIT"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("GOGC", "")
			t.Setenv("GOMEMLIMIT", "")
			t.Setenv(name, "100")
			if n := HoldHeap(); n != 0 || held != nil {
				t.Errorf("%d bytes are held although %s is set", n, name)
			}
		})
	}
}

const fresh = "PURSER_TEST_FRESH"

// The test runs itself in a new process, since the heap of this process has been used already.
// It expects that HoldHeap doesn't increase the physical memory of the process.
func TestHoldHeapCostsNothing(t *testing.T) {
	if os.Getenv(fresh) == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), fresh+"=1", "GOGC=", "GOMEMLIMIT=")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	before := rss(t)
	n := HoldHeap()
	runtime.GC()
	if grown := rss(t) - before; grown > n/4 {
		t.Errorf("holding %d bytes took %d of the system's memory", n, grown)
	}
}

// rss returns the physical memory of this process in bytes; 0 if the system doesn't report it.
func rss(t *testing.T) int64 {
	t.Helper()
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	pages, err := strconv.ParseInt(strings.Fields(string(text))[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}
