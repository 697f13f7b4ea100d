package oci

import (
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"strings"
)

var (
	// ErrDigestInvalid is the error for text that isn't a digest.
	ErrDigestInvalid = errors.New("invalid digest")
	// ErrDigestUnsupported is the error for a well-formed digest or algorithm name whose
	// algorithm is neither sha256 nor sha512.
	ErrDigestUnsupported = errors.New("unsupported digest algorithm")
)

// Algorithm is a hash algorithm by which content is addressed. The database stores its value
// as the first byte of a digest ([Digest.Bytes]), so the values never change. The zero value
// is no algorithm.
type Algorithm uint8

// These are the algorithms that the OCI Image Specification registers ("Registered
// algorithms"); every implementation has sha256.
const (
	SHA256 Algorithm = 1
	SHA512 Algorithm = 2
)

// ParseAlgorithm returns the algorithm of that name. The error matches
// [ErrDigestUnsupported].
func ParseAlgorithm(name string) (Algorithm, error) {
	switch name {
	case "sha256":
		return SHA256, nil
	case "sha512":
		return SHA512, nil
	}
	return 0, fmt.Errorf("%w %.40q: sha256 and sha512 are supported", ErrDigestUnsupported, name)
}

// String returns the algorithm's name as it stands in a digest.
func (a Algorithm) String() string {
	switch a {
	case SHA256:
		return "sha256"
	case SHA512:
		return "sha512"
	}
	return fmt.Sprintf("Algorithm(%d)", uint8(a))
}

// Size returns the length of a raw hash in bytes, 0 for no algorithm.
func (a Algorithm) Size() int {
	switch a {
	case SHA256:
		return sha256.Size
	case SHA512:
		return sha512.Size
	}
	return 0
}

// New returns a new hash of the algorithm. The hashes of both algorithms implement
// encoding.BinaryMarshaler, so an upload can keep the hash's state between requests. New panics
// for an algorithm other than [SHA256] and [SHA512].
func (a Algorithm) New() hash.Hash {
	switch a {
	case SHA256:
		return sha256.New()
	case SHA512:
		return sha512.New()
	}
	panic("oci: New of " + a.String())
}

// Digest is the address of content: an algorithm and the content's hash. Digests are
// comparable, so they can be map keys; equal content has equal digests under the same
// algorithm. The zero value is no digest. Every other value was checked by this package and is
// valid.
type Digest struct {
	text string // canonical: "sha256:" and 64 lower-case hexadecimal digits
}

// ParseDigest parses "sha256:…" or "sha512:…" with lower-case hexadecimal digits of the exact
// length (OCI Image Specification, "Digests"). It returns [ErrDigestUnsupported] if s is well
// formed by the specification's grammar but has another algorithm, else [ErrDigestInvalid].
// The digest shares the memory of s.
func ParseDigest(s string) (Digest, error) {
	var encoded string
	switch {
	case len(s) == len("sha256:")+2*sha256.Size && s[:len("sha256:")] == "sha256:":
		encoded = s[len("sha256:"):]
	case len(s) == len("sha512:")+2*sha512.Size && s[:len("sha512:")] == "sha512:":
		encoded = s[len("sha512:"):]
	default:
		return Digest{}, digestError(s)
	}
	for i := 0; i < len(encoded); i++ {
		c := encoded[i]
		if ('0' > c || c > '9') && ('a' > c || c > 'f') {
			return Digest{}, fmt.Errorf("%w %q: %q is no lower-case hexadecimal digit", ErrDigestInvalid, s, encoded[i:i+1])
		}
	}
	return Digest{text: s}, nil
}

// digestError returns the error that says why s isn't a supported digest.
func digestError(s string) error {
	name, encoded, found := strings.Cut(s, ":")
	if !found || name == "" {
		return fmt.Errorf("%w %.200q: it must be algorithm:hexadecimal", ErrDigestInvalid, s)
	}
	alg, err := ParseAlgorithm(name)
	if err == nil {
		return fmt.Errorf("%w %.200q: %s has %d hexadecimal digits, not %d", ErrDigestInvalid, s, alg, 2*alg.Size(), len(encoded))
	}
	if !isAlgorithmName(name) || !isEncoded(encoded) {
		return fmt.Errorf("%w %.200q: it must be algorithm:hexadecimal", ErrDigestInvalid, s)
	}
	return err
}

// isAlgorithmName returns whether s is an algorithm name by the specification's grammar:
// components of [a-z0-9]+ with one of + . _ - between them.
func isAlgorithmName(s string) bool {
	component := false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case isLowerAlnum(c):
			component = true
		case component && (c == '+' || c == '.' || c == '_' || c == '-'):
			component = false
		default:
			return false
		}
	}
	return component
}

// isEncoded checks the grammar's encoded part: [a-zA-Z0-9=_-]+.
func isEncoded(s string) bool {
	for i := 0; i < len(s); i++ {
		c := s[i]
		if !isLowerAlnum(c) && ('A' > c || c > 'Z') && c != '=' && c != '_' && c != '-' {
			return false
		}
	}
	return s != ""
}

// DigestFromBytes parses the bytes that [Digest.Bytes] returns. It returns
// [ErrDigestUnsupported] for an unknown first byte, and [ErrDigestInvalid] for other wrong
// bytes.
func DigestFromBytes(b []byte) (Digest, error) {
	if len(b) == 0 {
		return Digest{}, fmt.Errorf("%w: no bytes", ErrDigestInvalid)
	}
	alg := Algorithm(b[0])
	if alg.Size() == 0 {
		return Digest{}, fmt.Errorf("%w: algorithm byte %d", ErrDigestUnsupported, b[0])
	}
	if len(b) != 1+alg.Size() {
		return Digest{}, fmt.Errorf("%w: %s has %d bytes, not %d", ErrDigestInvalid, alg, alg.Size(), len(b)-1)
	}
	return digestOf(alg, b[1:]), nil
}

// digestOf makes a digest from a raw hash, which must have the algorithm's length.
func digestOf(alg Algorithm, raw []byte) Digest {
	// The buffer is large enough for every digest, so only the string is allocated.
	var buf [len("sha512:") + 2*sha512.Size]byte
	n := copy(buf[:], alg.String())
	buf[n] = ':'
	n++
	n += hex.Encode(buf[n:], raw)
	return Digest{text: string(buf[:n])}
}

// FromHash returns the digest of what was written to h, a hash made by alg.New. The caller may
// write more to h afterwards. FromHash panics if the size of h isn't that of alg.
func FromHash(alg Algorithm, h hash.Hash) Digest {
	if h.Size() != alg.Size() {
		panic(fmt.Sprintf("oci: FromHash: a hash of %d bytes is not of %s", h.Size(), alg))
	}
	var buf [sha512.Size]byte
	return digestOf(alg, h.Sum(buf[:0]))
}

// Compute returns the digest of content. It panics if alg is neither [SHA256] nor [SHA512].
func Compute(alg Algorithm, content []byte) Digest {
	switch alg {
	case SHA256:
		sum := sha256.Sum256(content)
		return digestOf(alg, sum[:])
	case SHA512:
		sum := sha512.Sum512(content)
		return digestOf(alg, sum[:])
	}
	panic("oci: Compute with " + alg.String())
}

// String returns the digest as text, "" for the zero value.
func (d Digest) String() string { return d.text }

// IsZero says whether d is the zero value.
func (d Digest) IsZero() bool { return d.text == "" }

// Algorithm returns the digest's algorithm, 0 for the zero value.
func (d Digest) Algorithm() Algorithm {
	switch len(d.text) {
	case len("sha256:") + 2*sha256.Size:
		return SHA256
	case len("sha512:") + 2*sha512.Size:
		return SHA512
	}
	return 0
}

// Hex returns the hexadecimal part, "" for the zero value.
func (d Digest) Hex() string {
	if d.text == "" {
		return ""
	}
	return d.text[len("sha256:"):]
}

// Bytes returns the digest as the database stores it: one byte for the algorithm, then the raw
// hash. It returns nil for the zero value, which the database stores as NULL.
func (d Digest) Bytes() []byte {
	alg := d.Algorithm()
	if alg == 0 {
		return nil
	}
	b := make([]byte, 1+alg.Size())
	b[0] = byte(alg)
	if _, err := hex.Decode(b[1:], []byte(d.text[len("sha256:"):])); err != nil {
		panic("oci: a digest that isn't hexadecimal: " + d.text)
	}
	return b
}

// MarshalText returns the digest as text, so that JSON has it as a string.
func (d Digest) MarshalText() ([]byte, error) { return []byte(d.text), nil }

// UnmarshalText parses the text that [ParseDigest] accepts. Empty text gives the zero value.
func (d *Digest) UnmarshalText(b []byte) error {
	if len(b) == 0 {
		*d = Digest{}
		return nil
	}
	parsed, err := ParseDigest(string(b))
	if err != nil {
		return err
	}
	*d = parsed
	return nil
}
