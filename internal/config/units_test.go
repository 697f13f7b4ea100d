package config

import (
	"testing"
	"time"
)

func TestDurations(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]time.Duration{
		"0": 0, "0s": 0, "30s": 30 * time.Second, "1h30m": 90 * time.Minute, "1d": day, "1.5d": 36 * time.Hour,
		"1w": week, "1w2d3h4m5s": week + 2*day + 3*time.Hour + 4*time.Minute + 5*time.Second,
		"100ms": 100 * time.Millisecond, "7us": 7 * time.Microsecond, "7µs": 7 * time.Microsecond, "5ns": 5, "15250w": 15250 * week,
	} {
		if got, err := parseDuration(in); err != nil || got != want {
			t.Errorf("%q: %v, %v", in, got, err)
		}
	}
	for _, in := range []string{
		"", " ", "1", "-1s", "+1s", "1 s", "s", "d", "1x", "1y", "1hd", "1.2.3s", ".s", "1s ", "1s1", "1D", "∞",
		"15251w", "106752d", "9223372036854775808ns", "15250w15250w", "1e3s", "0x1s",
	} {
		if got, err := parseDuration(in); err == nil {
			t.Errorf("%q is accepted as %v", in, got)
		}
	}
}

func TestFormatDuration(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		0: "0s", time.Second: "1s", time.Minute: "1m", time.Hour: "1h", day: "24h", 90 * time.Second: "1m30s",
		time.Hour + time.Second: "1h0m1s", time.Hour + 30*time.Minute: "1h30m", 10 * time.Hour: "10h", 10 * time.Minute: "10m", 20 * time.Millisecond: "20ms",
	} {
		if got := formatDuration(d); got != want {
			t.Errorf("%v: %q, want %q", d, got, want)
		}
	}
}

func TestSizes(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]int64{
		"0": 0, "1": 1, "64MiB": 64 << 20, "64mib": 64 << 20, "64 MiB": 64 << 20, "64MB": 64_000_000, "1.5GiB": 3 << 29, "2TiB": 2 << 40, "5B": 5, "1KiB": 1024,
	} {
		if got, err := parseSize(in); err != nil || got != want {
			t.Errorf("%q: %d, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "-1", "x", "MiB", "1,5MiB", "1XiB", "16EiB", "9EiB", "NaN", "inf"} {
		if got, err := parseSize(in); err == nil {
			t.Errorf("%q is accepted as %d", in, got)
		}
	}
	for n, want := range map[int64]string{0: "0", 1: "1", 1024: "1KiB", 1025: "1025", 64 << 20: "64MiB", 3 << 29: "1536MiB", 1 << 40: "1TiB"} {
		if got := formatSize(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}

func FuzzDuration(f *testing.F) {
	for _, s := range []string{"", "0", "1w2d", "1.5h", "99999999w", "1h1h", "-1s"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := parseDuration(s)
		if err != nil {
			return
		}
		if d < 0 {
			t.Fatalf("%q is negative: %v", s, d)
		}
		if again, err := parseDuration(formatDuration(d)); err != nil || again != d {
			t.Fatalf("%q: %v doesn't survive: %v, %v", s, d, again, err)
		}
	})
}
