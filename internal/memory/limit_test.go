package memory

import (
	"math"
	"runtime"
	"testing"
)

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

func TestLimit(t *testing.T) {
	t.Parallel()
	got := Limit()
	if known := runtime.GOOS == "linux"; known != (got > 64<<20) || !known && got != 0 {
		t.Errorf("this system has %d bytes of memory", got)
	}
}
