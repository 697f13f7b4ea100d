package oci

import (
	"errors"
	"regexp"
	"strings"
	"testing"
)

// These are the regular expressions of the specification, anchored. ValidateName and
// ValidateTag must accept the same texts.
var (
	nameRegexp = regexp.MustCompile(`^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(\/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*\z`)
	tagRegexp  = regexp.MustCompile(`^[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}\z`)
)

func TestValidateName(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"a", "0", "library/alpine", "a/b/c/d/e/f", "a.b", "a_b", "a__b", "a-b", "a---b",
		"a.b_c__d-e/f.g", strings.Repeat("a", 255), strings.Repeat("a/", 127) + "a",
	} {
		if err := ValidateName(name); err != nil {
			t.Errorf("ValidateName(%q) = %v", name, err)
		}
	}
	for _, name := range []string{
		"", "/", "a/", "/a", "a//b", "A", "aB", "a..b", "a___b", "a_-b", "a-_b", ".a", "a.", "-a",
		"a-", "_a", "a_", "a/.b", "a./b", "a/-b", "a b", "a\n", "a\x00", "é", "a:b", "a@b", "a%2fb",
		"../etc", "a/../b", strings.Repeat("a", 256), strings.Repeat("-", 200), "a" + strings.Repeat("-", 200),
	} {
		if err := ValidateName(name); !errors.Is(err, ErrNameInvalid) {
			t.Errorf("ValidateName(%q) = %v, want ErrNameInvalid", name, err)
		}
	}
}

func TestValidateTag(t *testing.T) {
	t.Parallel()
	for _, tag := range []string{"a", "_", "latest", "V1.2.3", "_x", "1-2_3.4", "a..b", "a--", strings.Repeat("x", 128)} {
		if err := ValidateTag(tag); err != nil {
			t.Errorf("ValidateTag(%q) = %v", tag, err)
		}
	}
	for _, tag := range []string{"", ".a", "-a", "a b", "a/b", "a:b", "sha256:00", "a\n", "é", strings.Repeat("x", 129)} {
		if err := ValidateTag(tag); !errors.Is(err, ErrTagInvalid) {
			t.Errorf("ValidateTag(%q) = %v, want ErrTagInvalid", tag, err)
		}
	}
}

func FuzzName(f *testing.F) {
	for _, s := range []string{"", "a", "library/alpine", "a__b", "a___b", "a--b/c", "a/", "a\n", "A", "a_-b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		err := ValidateName(s)
		if want := len(s) <= MaxNameLength && nameRegexp.MatchString(s); (err == nil) != want {
			t.Fatalf("ValidateName(%q) = %v, the expression matches: %v", s, err, want)
		}
		if err != nil && !errors.Is(err, ErrNameInvalid) {
			t.Fatalf("ValidateName(%q) = %v, not ErrNameInvalid", s, err)
		}
	})
}

func FuzzTag(f *testing.F) {
	for _, s := range []string{"", "latest", "_", ".a", "-", "a\n", "v1.0", strings.Repeat("x", 129)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		err := ValidateTag(s)
		if want := tagRegexp.MatchString(s); (err == nil) != want {
			t.Fatalf("ValidateTag(%q) = %v, the expression matches: %v", s, err, want)
		}
		if err != nil && !errors.Is(err, ErrTagInvalid) {
			t.Fatalf("ValidateTag(%q) = %v, not ErrTagInvalid", s, err)
		}
	})
}

func TestValidNamesAllocateNothing(t *testing.T) {
	if n := testing.AllocsPerRun(100, func() {
		if ValidateName("library/some-image_x") != nil || ValidateTag("v1.2.3-rc.1") != nil {
			t.Error("a valid name was refused")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkValidateName(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if err := ValidateName("example-group/sub.group/some__image-name"); err != nil {
			b.Fatal(err)
		}
	}
}
