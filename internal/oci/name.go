package oci

import (
	"errors"
	"fmt"
)

const (
	// MaxNameLength is the longest repository name in bytes. The specification sets no limit
	// of its own, but says that many clients limit the registry's host, a slash and the name
	// to 255 characters together.
	MaxNameLength = 255
	// MaxTagLength is the longest tag in bytes (OCI Distribution
	// Specification, "Pulling manifests").
	MaxTagLength = 128
)

var (
	// ErrNameInvalid is the error of [ValidateName], which wraps it in a text.
	ErrNameInvalid = errors.New("invalid repository name")
	// ErrTagInvalid is the error of [ValidateTag], which wraps it in a text.
	ErrTagInvalid = errors.New("invalid tag")
)

// ValidateName returns an error unless s is a repository name (OCI Distribution Specification,
// "Pulling manifests"). A name consists of components joined by '/', at most [MaxNameLength]
// bytes in all. A component consists of lower-case letters and digits, between which '.', '_',
// '__' or any number of '-' may stand. The error wraps [ErrNameInvalid] and says which byte is
// wrong.
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
		// A separator or slash is allowed only between two letters or digits.
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

// separatorWidth returns the length in bytes of the separator at the beginning of s, 0 if
// there is none. For more than two '_' it returns 2; the caller then refuses the third '_',
// since it isn't a letter or digit.
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

// ValidateTag returns an error unless s is a tag: a letter, digit or '_', followed by up to
// 127 letters, digits, '_', '.' and '-' (OCI Distribution Specification, "Pulling manifests").
// The error wraps [ErrTagInvalid].
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
