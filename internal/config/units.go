package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
)

// parseDuration parses a duration as time.ParseDuration does, with the additional units d
// (24 hours) and w (7 days): "90s", "1h30m", "1.5d", "1w2d". A negative duration is an
// error.
func parseDuration(text string) (time.Duration, error) {
	bad := fmt.Errorf(`%q is no duration; write numbers with units, such as "30s", "24h", "7d" or "1w"`, text)
	if text == "" {
		return 0, bad
	}
	if text == "0" {
		return 0, nil
	}
	var total time.Duration
	for rest := text; rest != ""; {
		number := len(rest) - len(strings.TrimLeft(rest, "0123456789."))
		tail := rest[number:]
		unit := len(tail) - len(strings.TrimLeft(tail, "nuµμmshdw"))
		if number == 0 || unit == 0 {
			return 0, bad
		}
		d, err := parsePart(rest[:number], tail[:unit])
		if err != nil || d > math.MaxInt64-total {
			return 0, bad
		}
		total += d
		rest = tail[unit:]
	}
	return total, nil
}

// parsePart parses one number with its unit.
func parsePart(number, unit string) (time.Duration, error) {
	var hours time.Duration
	switch unit {
	case "d":
		hours = 24
	case "w":
		hours = 7 * 24
	default:
		return time.ParseDuration(number + unit)
	}
	d, err := time.ParseDuration(number + "h")
	if err != nil {
		return 0, err
	}
	if d > math.MaxInt64/hours {
		return 0, strconv.ErrRange
	}
	return d * hours, nil
}

// formatDuration formats `d` as package time does, but without minutes and seconds that are
// zero at the end: "1h", not "1h0m0s".
func formatDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// parseSize returns the number of bytes that `text` stands for, such as "1000" or "64MiB".
// The units KiB, MiB, GiB and TiB are powers of 1,024; kB, MB, GB and TB are powers of
// 1,000.
func parseSize(text string) (int64, error) {
	n, err := humanize.ParseBytes(text)
	// Commas are refused, because humanize.ParseBytes ignores them: it would read "1,5" as
	// 15.
	if err != nil || n > math.MaxInt64 || strings.Contains(text, ",") {
		return 0, fmt.Errorf(`%q is no size; write a number of bytes, or one with a unit such as "64MiB"`, text)
	}
	return int64(n), nil
}

// formatSize formats a number of bytes with the largest unit that divides it.
func formatSize(n int64) string {
	for _, unit := range []struct {
		bytes int64
		name  string
	}{{1 << 40, "TiB"}, {1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if n != 0 && n%unit.bytes == 0 {
			return strconv.FormatInt(n/unit.bytes, 10) + unit.name
		}
	}
	return strconv.FormatInt(n, 10)
}
