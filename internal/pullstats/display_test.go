package pullstats

import (
	"math"
	"testing"
)

func TestDisplay(t *testing.T) {
	t.Parallel()
	for count, want := range map[int64]string{
		math.MinInt64: "0", -1: "0", 0: "0", 1: "1", 7: "7", 999: "999",
		1000: "1K", 1099: "1K", 1100: "1.1K", 1700: "1.7K", 1799: "1.7K", 1999: "1.9K", 2000: "2K", 9099: "9K", 9900: "9.9K", 9999: "9.9K",
		10_000: "10K+", 49_999: "10K+", 50_000: "50K+", 99_999: "50K+", 100_000: "100K+", 499_999: "100K+",
		500_000: "500K+", 999_999: "500K+", 1_000_000: "1M+", math.MaxInt64: "1M+",
	} {
		if got := Display(count); got != want {
			t.Errorf("%d: %s, want %s", count, got, want)
		}
	}
}
