package policy

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Size is a number of bytes as policies write it: a number and a unit, such as 50GiB. The zero value
// means that no size is given.
type Size int64

// sizeUnits are the units of sizes. Size.String uses the first that divides a size.
var sizeUnits = []struct {
	name  string
	bytes int64
}{
	{"TiB", 1 << 40}, {"TB", 1e12}, {"GiB", 1 << 30}, {"GB", 1e9}, {"MiB", 1 << 20}, {"MB", 1e6}, {"KiB", 1 << 10}, {"kB", 1e3}, {"", 1},
}

// ParseSize returns the number of bytes that a text stands for: a whole number, above 0, of
// bytes, or of a unit that follows it: kB, MB, GB and TB are powers of 1,000; KiB, MiB, GiB
// and TiB are powers of 1,024.
func ParseSize(text string) (Size, error) {
	digits := len(text) - len(strings.TrimLeft(text, "0123456789"))
	n, err := strconv.ParseInt(text[:digits], 10, 64)
	for _, unit := range sizeUnits {
		switch {
		case text[digits:] != unit.name:
		case err != nil || n > math.MaxInt64/unit.bytes:
			return 0, fmt.Errorf("%.40q isn't a number of bytes up to 8388607TiB", text)
		case n == 0:
			return 0, fmt.Errorf("%.40q is zero", text)
		default:
			return Size(n * unit.bytes), nil
		}
	}
	return 0, fmt.Errorf("%.40q is no size; write a whole number and a unit, such as 64MiB or 1GB", text)
}

// String writes a size as ParseSize reads it; "" for 0.
func (s Size) String() string {
	for _, unit := range sizeUnits {
		if n := int64(s); n > 0 && n%unit.bytes == 0 {
			return strconv.FormatInt(n/unit.bytes, 10) + unit.name
		}
	}
	return ""
}

// MarshalText returns the size as String does.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads a size as MarshalText writes it.
func (s *Size) UnmarshalText(text []byte) (err error) {
	if *s = 0; len(text) > 0 {
		*s, err = ParseSize(string(text))
	}
	return err
}
