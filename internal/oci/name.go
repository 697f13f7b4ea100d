package oci

import (
	"errors"
	"fmt"
)

const (
	// MaxNameLength is the longest repository name in bytes. The specification
	// sets no limit of its own, but many clients refuse a registry host, a
	// slash and a name that together exceed 255 characters.
	MaxNameLength = 255
	// MaxTagLength is the longest tag in bytes (OCI Distribution
	// Specification, "Pulling manifests").
	MaxTagLength = 128
)

var (
	// ErrNameInvalid is matched by every error of [ValidateName].
	ErrNameInvalid = errors.New("invalid repository name")
	// ErrTagInvalid is matched by every error of [ValidateTag].
	ErrTagInvalid = errors.New("invalid tag")
)

// ValidateName reports whether s is a repository name: components of lower-case
// letters and digits, which '.', '_', '__' or any number of '-' may separate,
// joined by '/', at most [MaxNameLength] bytes in all (OCI Distribution
// Specification, "Pulling manifests"). The error matches [ErrNameInvalid] and
// says which byte is wrong.
func ValidateName(s string) error {
	if s == "" {
		return fmt.Errorf("%w: it is empty", ErrNameInvalid)
	}
	if len(s) > MaxNameLength {
		return fmt.Errorf("%w: it has %d bytes and at most %d are allowed", ErrNameInvalid, len(s), MaxNameLength)
	}
	alnum := false // the previous byte is a letter or digit
	for i := 0; i < len(s); {
		c := s[i]
		if isLowerAlnum(c) {
			alnum = true
			i++
			continue
		}
		// Separators and slashes must stand between two letters or digits.
		width := separatorWidth(s[i:])
		if width == 0 {
			return fmt.Errorf("%w %q: %q at byte %d is not allowed (lower-case letters, digits, '.', '_', '-' and '/' are)", ErrNameInvalid, s, s[i:i+1], i)
		}
		if !alnum || i+width == len(s) || !isLowerAlnum(s[i+width]) {
			return fmt.Errorf("%w %q: %q at byte %d must stand between letters or digits", ErrNameInvalid, s, s[i:i+width], i)
		}
		alnum = false
		i += width
	}
	return nil
}

// separatorWidth returns the length of the separator at the start of s in bytes, 0 if
// there is none. For more than two '_' it returns 2, and the caller then refuses the
// next '_', since it isn't a letter or digit.
func separatorWidth(s string) int {
	switch s[0] {
	case '/', '.':
		return 1
	case '_':
		if len(s) > 1 && s[1] == '_' {
			return 2
		}
		return 1
	case '-':
		n := 1
		for n < len(s) && s[n] == '-' {
			n++
		}
		return n
	}
	return 0
}

func isLowerAlnum(c byte) bool {
	return 'a' <= c && c <= 'z' || '0' <= c && c <= '9'
}

// ValidateTag reports whether s is a tag: a letter, digit or '_', followed by up to 127
// letters, digits, '_', '.' and '-' (OCI Distribution Specification, "Pulling
// manifests"). The error matches [ErrTagInvalid].
func ValidateTag(s string) error {
	if s == "" {
		return fmt.Errorf("%w: it is empty", ErrTagInvalid)
	}
	if len(s) > MaxTagLength {
		return fmt.Errorf("%w: it has %d bytes and at most %d are allowed", ErrTagInvalid, len(s), MaxTagLength)
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		if isLowerAlnum(c) || 'A' <= c && c <= 'Z' || c == '_' {
			continue
		}
		if c != '.' && c != '-' {
			return fmt.Errorf("%w %q: %q at byte %d is not allowed (letters, digits, '_', '.' and '-' are)", ErrTagInvalid, s, s[i:i+1], i)
		}
		if i == 0 {
			return fmt.Errorf("%w %q: it may not begin with %q", ErrTagInvalid, s, s[:1])
		}
	}
	return nil
}
