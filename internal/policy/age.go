package policy

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

const (
	// Day is the length of a day in ages.
	Day = 24 * time.Hour
	// maxAge is the longest age. It is far below the limit of time.Duration (292 years), so
	// that no sum of an age and a time overflows.
	maxAge     = 100 * 365 * Day
	maxAgeText = "100y"

	ageUnits = "s, m, h, d, w and y (seconds, minutes, hours, days, weeks, years of 365 days)"
)

// Age is a length of time as policies write it: a number and one unit, such as 2w. An age
// from [ParseAge] is at least a second and at most 100 years; the zero value means that no
// age is given. [NoWait] has no length either, but is given.
type Age struct {
	count int64
	unit  byte
}

// NoWait is the length of a grace period that somebody doesn't want: 0s.
var NoWait = Age{unit: 's'}

// ParseAge parses an age: digits followed by one of the units s, m, h, d, w and y (seconds,
// minutes, hours, days, weeks and years of 365 days). It returns an error for any other
// text and for zero, because a policy with the age zero would select every tag.
func ParseAge(s string) (Age, error) {
	if s == "" {
		return Age{}, errors.New("it is empty; write a number and a unit, such as 2w")
	}
	for _, c := range s {
		if c > 0x7e || c < 0x20 {
			return Age{}, fmt.Errorf("%.40q has a character that isn't printable ASCII; write a number and a unit, such as 2w", s)
		}
	}
	if s[0] == '-' {
		return Age{}, fmt.Errorf("%.40q is negative", s)
	}
	digits := len(s) - len(strings.TrimLeft(s, "0123456789"))
	number, unit := s[:digits], s[digits:]
	switch {
	case number == "":
		return Age{}, fmt.Errorf("%.40q doesn't begin with a digit; write a number and a unit, such as 2w", s)
	case unit == "":
		return Age{}, fmt.Errorf("%.40q has no unit; units are %s", s, ageUnits)
	case unitLength(unit[0]) == 0:
		return Age{}, fmt.Errorf("%.40q has the unknown unit %.20q; units are %s", s, unit, ageUnits)
	case len(unit) > 1:
		return Age{}, fmt.Errorf("%.40q goes on after its unit; write one number and one unit, such as 2w", s)
	}
	number = strings.TrimLeft(number, "0")
	if number == "" {
		return Age{}, fmt.Errorf("%.40q is zero, which would select every tag", s)
	}
	count, err := strconv.ParseInt(number, 10, 64)
	if err != nil || count > int64(maxAge/unitLength(unit[0])) {
		return Age{}, fmt.Errorf("%.40q is longer than %s", s, maxAgeText)
	}
	return Age{count: count, unit: unit[0]}, nil
}

// unitLength returns the length of a unit, 0 for unknown units.
func unitLength(unit byte) time.Duration {
	switch unit {
	case 's':
		return time.Second
	case 'm':
		return time.Minute
	case 'h':
		return time.Hour
	case 'd':
		return Day
	case 'w':
		return 7 * Day
	case 'y':
		return 365 * Day
	}
	return 0
}

// Duration returns the age's length. 14d and 2w are equally long.
func (a Age) Duration() time.Duration { return time.Duration(a.count) * unitLength(a.unit) }

// inSeconds returns an age of the same length in seconds, which ages of the same length have in
// common.
func (a Age) inSeconds() Age {
	if a == (Age{}) {
		return a
	}
	return Age{count: int64(a.Duration() / time.Second), unit: 's'}
}

// String returns the age in the form that [ParseAge] reads, without leading zeros, and ""
// for the zero value.
func (a Age) String() string {
	if a == (Age{}) {
		return ""
	}
	return strconv.FormatInt(a.count, 10) + string(rune(a.unit))
}

// MarshalText returns the age as String does.
func (a Age) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText reads an age as MarshalText writes it.
func (a *Age) UnmarshalText(text []byte) (err error) {
	switch string(text) {
	case "":
		*a = Age{}
	case NoWait.String():
		*a = NoWait
	default:
		*a, err = ParseAge(string(text))
	}
	return err
}
