package builtinpg

import (
	"math"
	"runtime"
	"testing"
)

func TestSharedBuffers(t *testing.T) {
	t.Parallel()
	for memory, want := range map[int64]string{
		0:         "128MB",
		512 << 20: "128MB",
		8 << 30:   "1024MB",
		24 << 30:  "3072MB",
		1 << 40:   "4096MB",
	} {
		if got := sharedBuffers(memory); got != want {
			t.Errorf("%d MiB of memory: shared_buffers is %s, want %s", memory>>20, got, want)
		}
	}
}

func TestParseBytes(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]int64{
		"16":                  16 << 10,
		"max":                 math.MaxInt64,
		"":                    math.MaxInt64,
		"0":                   math.MaxInt64,
		"9223372036854771712": math.MaxInt64, // how the first version of control groups says "no limit"
	} {
		if got := parseBytes(s, 1<<10); got != want {
			t.Errorf("%q is %d bytes, want %d", s, got, want)
		}
	}
}

func TestMemoryLimit(t *testing.T) {
	t.Parallel()
	got := memoryLimit()
	if known := runtime.GOOS == "linux"; known != (got > 64<<20) || !known && got != 0 {
		t.Errorf("this system has %d bytes of memory", got)
	}
}
