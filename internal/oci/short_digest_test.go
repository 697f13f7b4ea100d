package oci

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

func TestShortDigest(t *testing.T) {
	t.Parallel()
	whole := Compute(SHA256, []byte("x"))
	long := Compute(SHA512, []byte("x"))
	for text, want := range map[string]string{
		whole.String(): whole.String(), whole.String()[:13]: whole.String()[:13], whole.Hex()[:7] + "…": whole.Hex()[:7],
		"sha512:" + long.Hex()[:9] + "...": "sha512:" + long.Hex()[:9], long.Hex(): long.Hex(),
	} {
		s, err := ParseShortDigest(text)
		if err != nil || s.String() != want {
			t.Errorf("%s: %s, %v", text, s, err)
		}
		d := whole
		if strings.Contains(text, long.Hex()[:9]) {
			d = long
		}
		first, last := s.Range(d.Algorithm())
		if !s.Begins(d) || bytes.Compare(first, d.Bytes()) > 0 || bytes.Compare(last, d.Bytes()) < 0 || len(first) != len(d.Bytes()) || len(last) != len(first) {
			t.Errorf("%s doesn't lead to %s: %x to %x", text, d, first, last)
		}
	}
	for _, text := range []string{"", "…", "3f2a1", "sha256:3f2a1", "sha256:", "3F2A1B", "latest", "sha256:" + long.Hex(), long.Hex() + "0", "3f2a1b……", "-f2a1b09", " 3f2a1b"} {
		if s, err := ParseShortDigest(text); !errors.Is(err, ErrDigestInvalid) {
			t.Errorf("%q: %v %v", text, s, err)
		}
	}
	if _, err := ParseShortDigest("md5:3f2a1b09"); !errors.Is(err, ErrDigestUnsupported) {
		t.Errorf("another algorithm: %v", err)
	}
	s, err := ParseShortDigest("sha256:" + whole.Hex()[:6])
	if first, last := s.Range(SHA512); err != nil || first != nil || last != nil || s.Begins(long) || (ShortDigest{}).Begins(whole) {
		t.Errorf("of sha512: %x to %x, %v", first, last, err)
	}
}
