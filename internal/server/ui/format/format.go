// Package format writes numbers, times, sizes and the text of clients for the pages of the web UI.
package format

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// kinds are the media types of manifests, as people say them.
var kinds = map[string]string{
	"application/vnd.oci.image.manifest.v1+json":                "image",
	"application/vnd.oci.image.index.v1+json":                   "index",
	"application/vnd.docker.distribution.manifest.v2+json":      "image (Docker)",
	"application/vnd.docker.distribution.manifest.list.v2+json": "index (Docker)",
}

// Kind returns what a media type means.
func Kind(mediaType string) string {
	if text, ok := kinds[mediaType]; ok {
		return text
	}
	return Clip(80, mediaType)
}

// Ago returns how long ago a time was, in one unit: "3 h ago". It takes a time.Time or a pointer
// to one; the zero time and nil are "never".
func Ago(value any) string {
	t, ok := timeOf(value)
	if !ok {
		return "never"
	}
	d := time.Since(t)
	if d < 0 {
		return "in " + Unit(-d+2*time.Second) // what was set for three days just now is in three days
	}
	if d < 10*time.Second {
		return "just now"
	}
	return Unit(d) + " ago"
}

// Unit rounds a duration down to its largest unit.
func Unit(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(d/time.Second))
	case d < time.Hour:
		return fmt.Sprintf("%d min", int(d/time.Minute))
	case d < 2*day:
		return fmt.Sprintf("%d h", int(d/time.Hour))
	case d < 60*day:
		return fmt.Sprintf("%d days", int(d/day))
	case d < 730*day:
		return fmt.Sprintf("%d months", int(d/(30*day)))
	}
	return fmt.Sprintf("%d years", int(d/(365*day)))
}

func timeOf(value any) (time.Time, bool) {
	switch t := value.(type) {
	case time.Time:
		return t, !t.IsZero()
	case *time.Time:
		if t != nil {
			return *t, !t.IsZero()
		}
	}
	return time.Time{}, false
}

// Exact returns a time to the second, in UTC, "" for none.
func Exact(value any) string {
	t, ok := timeOf(value)
	if !ok {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05 UTC")
}

// Day returns the day of a time, in UTC: "5 Mar 2026".
func Day(t time.Time) string { return t.UTC().Format("2 Jan 2006") }

// Stamp returns a time for the attribute datetime of the element time.
func Stamp(value any) string {
	t, ok := timeOf(value)
	if !ok {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

// Duration returns a duration in seconds or as time.Duration for people.
func Duration(value any) string {
	switch d := value.(type) {
	case time.Duration:
		if 0 < d && d < time.Second {
			return "under 1 s"
		}
		return Unit(d)
	case float64:
		return Duration(time.Duration(d * float64(time.Second)))
	case int64:
		return Unit(time.Duration(d) * time.Second)
	}
	return fmt.Sprint(value)
}

// Bytes returns a size with a binary unit and three digits at most: "1.4 MiB".
func Bytes(value any) string {
	n, ok := integer(value)
	if !ok {
		return "–"
	}
	sign := ""
	if n < 0 {
		sign, n = "−", -n
	}
	if n < 1024 {
		return sign + strconv.FormatInt(n, 10) + " B"
	}
	size, i := float64(n), -1
	for size >= 1023.5 && i < 5 {
		size /= 1024
		i++
	}
	digits := 0
	if size < 9.95 {
		digits = 1
	}
	return sign + strconv.FormatFloat(size, 'f', digits, 64) + " " + []string{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}[i]
}

// byteUnits are the units of sizes as people type them. Of units in which a size is equally short, the
// first is shown.
var byteUnits = []struct {
	name  string
	bytes int64
}{
	{"PiB", 1 << 50}, {"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
	{"PB", 1e15}, {"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"B", 1},
}

// ExactBytes returns a size as somebody has most likely typed it: in the unit, binary or decimal, in which
// the number is the shortest, with up to three decimals. It stands for exactly this size, so saving it
// again changes nothing.
func ExactBytes(n int64) string {
	best, unit := strconv.FormatInt(n, 10), "B"
	for _, u := range byteUnits {
		if n < u.bytes || n%u.bytes*1000%u.bytes != 0 {
			continue
		}
		text := strconv.FormatInt(n/u.bytes, 10)
		if part := n % u.bytes * 1000 / u.bytes; part > 0 {
			text += strings.TrimRight(fmt.Sprintf(".%03d", part), "0")
		}
		if len(text) < len(best) {
			best, unit = text, u.name
		}
	}
	return best + " " + unit
}

// IsDecimal says whether a size of exactBytes has a decimal unit.
func IsDecimal(size string) bool {
	return strings.HasSuffix(size, "B") && !strings.HasSuffix(size, "iB") && !strings.HasSuffix(size, " B")
}

// DecimalBytes is formatBytes with a decimal unit: "1.4 MB".
func DecimalBytes(n int64) string {
	size, i := float64(n), -1
	for size >= 999.5 && i < 4 {
		size /= 1000
		i++
	}
	if i < 0 {
		return strconv.FormatInt(n, 10) + " B"
	}
	digits := 0
	if size < 9.95 {
		digits = 1
	}
	return strconv.FormatFloat(size, 'f', digits, 64) + " " + []string{"kB", "MB", "GB", "TB", "PB"}[i]
}

// Number returns a number with commas between thousands.
func Number(value any) string {
	n, ok := integer(value)
	if !ok {
		return "–"
	}
	text := strconv.FormatInt(n, 10)
	sign, digits := "", text
	if n < 0 {
		sign, digits = "−", text[1:]
	}
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return sign + digits
}

func integer(value any) (int64, bool) {
	switch n := value.(type) {
	case int:
		return int64(n), true
	case int32:
		return int64(n), true
	case int64:
		return n, true
	case float64:
		return int64(n), true
	case *int64:
		if n != nil {
			return *n, true
		}
	}
	return 0, false
}

// ShortDigest returns the first twelve digits of a digest, with its algorithm unless that is
// sha256.
func ShortDigest(digest any) string {
	text := fmt.Sprint(digest)
	algorithm, hex, ok := strings.Cut(text, ":")
	if !ok {
		return text
	}
	if len(hex) > 12 {
		hex = hex[:12]
	}
	if algorithm == "sha256" {
		return hex
	}
	return algorithm + ":" + hex
}

// Plural returns a count with its noun: plural 1 "tag" "tags" is "1 tag".
func Plural(count any, one, many string) string {
	if n, ok := integer(count); ok && n == 1 {
		return "1 " + one
	}
	return Number(count) + " " + many
}

// Clip returns at most n characters of text that somebody else has written. Characters that
// would change the direction of the text around them, or can't be seen, become visible.
func Clip(n int, value any) string {
	text := []rune(fmt.Sprint(value))
	cut := len(text) > n
	if cut {
		text = text[:n]
	}
	for i, c := range text {
		if unicode.Is(unicode.Cf, c) || unicode.IsControl(c) && c != '\n' && c != '\t' {
			text[i] = '\ufffd'
		}
	}
	if cut {
		return string(text) + "…"
	}
	return string(text)
}

// Sentence makes a sentence of an error's text: a capital at the beginning, a full stop at the
// end.
func Sentence(text string) string {
	if text = strings.TrimSpace(text); text == "" {
		return ""
	}
	r := []rune(text)
	r[0] = unicode.ToUpper(r[0])
	if last := r[len(r)-1]; last != '.' && last != '!' && last != '?' {
		r = append(r, '.')
	}
	return string(r)
}

// units are the units of ages, one and many.
var units = map[byte][2]string{
	's': {"second", "seconds"}, 'm': {"minute", "minutes"}, 'h': {"hour", "hours"},
	'd': {"day", "days"}, 'w': {"week", "weeks"}, 'y': {"year", "years"},
}

// Age returns an age such as 90d as people say it.
func Age(age string) string {
	n := len(age) - 1
	if n < 1 || strings.Trim(age[:n], "0123456789") != "" {
		return age
	}
	unit, known := units[age[n]]
	if !known {
		return age
	}
	if age[:n] == "1" {
		return "1 " + unit[0]
	}
	return age[:n] + " " + unit[1]
}
