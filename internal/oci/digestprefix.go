package oci

import (
	"bytes"
	"encoding/hex"
	"strings"
)

// DigestPrefix is the beginning of a digest: the algorithm and the first 64 hexadecimal
// digits, which are all digits of a sha256 and half of those of a sha512. Clients use digests
// in this form in the names of tags that replace the referrers API (OCI Distribution
// Specification, "Unavailable Referrers API"). Prefixes are comparable with ==; the zero value is
// no prefix.
type DigestPrefix struct {
	text string // "sha256:" or "sha512:", and 64 lower-case hexadecimal digits
}

const prefixDigits = 64

// CutDigest parses the digest at the beginning of a tag's name such as sha256-….sig. It returns
// the digest's prefix, and the rest of the name, here ".sig". `ok` is false if the name doesn't
// begin with a digest.
func CutDigest(tag string) (d DigestPrefix, rest string, ok bool) {
	name, encoded, found := strings.Cut(tag, "-")
	if !found || len(encoded) < prefixDigits {
		return d, "", false
	}
	if _, err := ParseAlgorithm(name); err != nil {
		return d, "", false
	}
	digits, rest := encoded[:prefixDigits], encoded[prefixDigits:]
	for i := range prefixDigits {
		if c := digits[i]; ('0' > c || c > '9') && ('a' > c || c > 'f') {
			return d, "", false
		}
	}
	return DigestPrefix{name + ":" + digits}, rest, true
}

// String returns the prefix in the form of a digest: the algorithm, a colon and the digits.
func (d DigestPrefix) String() string { return d.text }

// Range returns the lowest and the highest digest with this prefix, as [Digest.Bytes] would
// return them.
func (d DigestPrefix) Range() (first, last []byte) {
	name, encoded, _ := strings.Cut(d.text, ":")
	alg, err := ParseAlgorithm(name)
	if err != nil {
		return nil, nil
	}
	raw, _ := hex.DecodeString(encoded) // was checked when d was made
	first = append([]byte{byte(alg)}, raw...)
	missing := alg.Size() - len(raw)
	return append(bytes.Clone(first), bytes.Repeat([]byte{0}, missing)...), append(bytes.Clone(first), bytes.Repeat([]byte{0xff}, missing)...)
}
