package oci

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

var (
	// ErrRangeInvalid matches all errors of [ParseContentRange].
	ErrRangeInvalid = errors.New("invalid content range")
	// ErrCountInvalid matches all errors of [ParseCount].
	ErrCountInvalid = errors.New("invalid number of results")
)

// ParseContentRange parses the Content-Range of an upload's chunk: the offsets of its first
// and last byte, "0-99" (OCI Distribution Specification, "Pushing a blob in chunks"). It also
// accepts the forms of clients that follow RFC 9110, "bytes 0-99" and "bytes=0-99", each with
// or without "/200" or "/*" at the end. The length of the chunk is end-start+1, which always
// fits an int64. It returns [ErrRangeInvalid] for anything else.
func ParseContentRange(s string) (start, end int64, err error) {
	text := s
	if rest, ok := strings.CutPrefix(text, "bytes"); ok {
		if rest == "" || rest[0] != ' ' && rest[0] != '=' {
			return 0, 0, rangeError(s)
		}
		text = rest[1:]
	}
	text, total, hasTotal := strings.Cut(text, "/")
	from, to, found := strings.Cut(text, "-")
	start, okStart := parseDecimal(from)
	end, okEnd := parseDecimal(to)
	if !found || !okStart || !okEnd {
		return 0, 0, rangeError(s)
	}
	if end < start {
		return 0, 0, fmt.Errorf("%w %.100q: it ends before it starts", ErrRangeInvalid, s)
	}
	if end == math.MaxInt64 {
		return 0, 0, fmt.Errorf("%w %.100q: it is too large", ErrRangeInvalid, s)
	}
	if hasTotal && total != "*" {
		if size, ok := parseDecimal(total); !ok || size <= end {
			return 0, 0, fmt.Errorf("%w %.100q: it ends beyond its total", ErrRangeInvalid, s)
		}
	}
	return start, end, nil
}

func rangeError(s string) error {
	return fmt.Errorf("%w %.100q: it must be two offsets, start-end, both inclusive", ErrRangeInvalid, s)
}

// ParseCount parses the query parameter n, the number of results that a client wants: a
// decimal number from 0 (OCI Distribution Specification, "Listing Tags"). It returns
// [ErrCountInvalid] for anything else, also for an empty s; callers must check first whether
// the parameter is there.
func ParseCount(s string) (int, error) {
	n, ok := parseDecimal(s)
	if !ok || n > math.MaxInt32 {
		return 0, fmt.Errorf("%w %.40q: it must be a number from 0 to %d", ErrCountInvalid, s, math.MaxInt32)
	}
	return int(n), nil
}

// parseDecimal parses a number that consists of ASCII digits only; strconv would also accept a
// sign before them.
func parseDecimal(s string) (int64, bool) {
	for i := 0; i < len(s); i++ {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
	}
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil
}
