package oci

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"strings"
)

// MinShortDigest is the least number of hexadecimal digits of a [ShortDigest].
const MinShortDigest = 6

// ShortDigest is the beginning of a digest, as people copy it from a table: "sha256:3f2a1b09", or
// "3f2a1b09" without the algorithm. Several digests may begin with it. The zero value is no beginning.
type ShortDigest struct {
	algorithm Algorithm // 0: each
	digits    string
}

// ParseShortDigest parses the beginning of a digest, or a whole digest: at least [MinShortDigest]
// lower-case hexadecimal digits after "sha256:", "sha512:" or nothing. An ellipsis (… or ...) may
// follow. The error matches [ErrDigestInvalid] or [ErrDigestUnsupported].
func ParseShortDigest(text string) (s ShortDigest, err error) {
	name, digits, found := strings.Cut(strings.TrimSuffix(strings.TrimSuffix(text, "…"), "..."), ":")
	if !found {
		name, digits = "", name
	} else if s.algorithm, err = ParseAlgorithm(name); err != nil {
		return ShortDigest{}, err
	}
	most := SHA512.Size()
	if s.algorithm != 0 {
		most = s.algorithm.Size()
	}
	isDigit := func(r rune) bool { return '0' <= r && r <= '9' || 'a' <= r && r <= 'f' }
	if len(digits) < MinShortDigest || len(digits) > 2*most || strings.TrimLeftFunc(digits, isDigit) != "" {
		return ShortDigest{}, fmt.Errorf("%w %.200q: write it whole, or its first hexadecimal digits, at least %d, in lower case", ErrDigestInvalid, text, MinShortDigest)
	}
	s.digits = digits
	return s, nil
}

// String returns the beginning without an ellipsis.
func (s ShortDigest) String() string {
	if s.algorithm == 0 {
		return s.digits
	}
	return s.algorithm.String() + ":" + s.digits
}

// Begins says whether the digest d begins so.
func (s ShortDigest) Begins(d Digest) bool {
	return s.digits != "" && (s.algorithm == 0 || s.algorithm == d.Algorithm()) && strings.HasPrefix(d.Hex(), s.digits)
}

// Range returns the first and the last digest of an algorithm that begin so, as [Digest.Bytes] does;
// nil if none of the algorithm does.
func (s ShortDigest) Range(a Algorithm) (first, last []byte) {
	if s.digits == "" || s.algorithm != 0 && s.algorithm != a || len(s.digits) > 2*a.Size() {
		return nil, nil
	}
	fill := func(digit string) []byte {
		raw, err := hex.DecodeString(s.digits + strings.Repeat(digit, 2*a.Size()-len(s.digits)))
		if err != nil {
			panic("oci: the beginning of a digest that isn't hexadecimal: " + s.digits)
		}
		return bytes.Join([][]byte{{byte(a)}, raw}, nil)
	}
	return fill("0"), fill("f")
}
