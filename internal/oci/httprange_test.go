package oci

import (
	"errors"
	"fmt"
	"regexp"
	"testing"
)

func TestParseContentRange(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		in         string
		start, end int64
	}{
		{"0-0", 0, 0},
		{"0-99", 0, 99},
		{"100-199", 100, 199},
		{"007-010", 7, 10},
		{"bytes 0-99", 0, 99},
		{"bytes=5-99", 5, 99},
		{"bytes 0-99/100", 0, 99},
		{"bytes 0-99/*", 0, 99},
		{"0-99/200", 0, 99},
		{"0-9223372036854775806", 0, 9223372036854775806},
	} {
		start, end, err := ParseContentRange(test.in)
		if err != nil || start != test.start || end != test.end {
			t.Errorf("ParseContentRange(%q) = %d, %d, %v", test.in, start, end, err)
		}
	}
	for _, in := range []string{
		"", "-", "0-", "-0", "5-4", "a-b", "0", "+1-2", "1-+2", "0--1", "-1-2", " 0-1", "0-1 ", "0 - 1", "bytes", "bytes ",
		"bytes0-1", "bytes  0-1", "bytes 0-99/99", "0-99/", "0-99/x", "0-1-2", "0x0-0x1", "0-1,2-3", "٠-١",
		"0-9223372036854775807", "0-9223372036854775808", "bytes */100", "0-1/-5",
	} {
		if _, _, err := ParseContentRange(in); !errors.Is(err, ErrRangeInvalid) {
			t.Errorf("ParseContentRange(%q) = %v, want ErrRangeInvalid", in, err)
		}
	}
}

func TestParseCount(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]int{"0": 0, "1": 1, "1000": 1000, "007": 7, "2147483647": 2147483647} {
		if n, err := ParseCount(in); err != nil || n != want {
			t.Errorf("ParseCount(%q) = %d, %v", in, n, err)
		}
	}
	for _, in := range []string{"", "-1", "+1", "1.5", "1e3", "x", " 1", "2147483648", "99999999999999999999"} {
		if n, err := ParseCount(in); !errors.Is(err, ErrCountInvalid) || n != 0 {
			t.Errorf("ParseCount(%q) = %d, %v, want ErrCountInvalid", in, n, err)
		}
	}
}

func FuzzContentRange(f *testing.F) {
	for _, s := range []string{"0-0", "0-99", "5-4", "bytes 0-1/2", "bytes=0-1", "-", "0-9223372036854775807"} {
		f.Add(s)
	}
	plain := regexp.MustCompile(`^[0-9]+-[0-9]+\z`)
	f.Fuzz(func(t *testing.T, s string) {
		start, end, err := ParseContentRange(s)
		if err != nil {
			if !errors.Is(err, ErrRangeInvalid) || start != 0 || end != 0 {
				t.Fatalf("ParseContentRange(%q) = %d, %d, %v", s, start, end, err)
			}
			// If s has the form that the specification requires (`plain`), ParseContentRange
			// may refuse s only because the end is less than the start, or because a number is
			// too large.
			var a, b int64
			if n, scanErr := fmt.Sscanf(s, "%d-%d", &a, &b); plain.MatchString(s) && n == 2 && scanErr == nil && a <= b && b < 1<<62 {
				t.Fatalf("ParseContentRange(%q) = %v", s, err)
			}
			return
		}
		if start < 0 || end < start || end-start+1 <= 0 {
			t.Fatalf("ParseContentRange(%q) = %d, %d", s, start, end)
		}
		again, againEnd, err := ParseContentRange(fmt.Sprintf("%d-%d", start, end))
		if err != nil || again != start || againEnd != end {
			t.Fatalf("%q doesn't survive: %d, %d, %v", s, again, againEnd, err)
		}
	})
}
