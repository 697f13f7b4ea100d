package password

import (
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, password, want string }{
		{"ann", "12345678", ""},
		{"ann", "pässwört", ""},
		{"ann", strings.Repeat("x", 1024), ""},
		{"ann", "colons: and spaces ", ""},
		{"ann", "1234567", "too short"},
		{"ann", "", "too short"},
		{"ann", strings.Repeat("x", 1025), "too long"},
		{"ann", "12345678\xff", "UTF-8"},
		{"ann", "12345678\x00", "control character"},
		{"ann", "1234\n5678", "control character"},
		{"ann", "1234\u00855678", "control character"},
		{"ann.lee@example.com", "ann.lee@example.com", "account's name"},
		{"ann.lee@example.com", "Ann.Lee@example.com", "account's name"},
	} {
		err := Check(tt.name, tt.password)
		switch {
		case tt.want == "" && err != nil:
			t.Errorf("%q: %v", tt.password, err)
		case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%q: %v, want an error with %q", tt.password, err, tt.want)
		case err != nil && len(tt.password) >= 8 && strings.Contains(err.Error(), tt.password):
			t.Errorf("the error has the password: %v", err)
		}
	}
}

func TestGenerate(t *testing.T) {
	t.Parallel()
	if len(readable) != 32 {
		t.Fatalf("%d characters, want 32", len(readable))
	}
	seen, count := map[string]bool{}, map[rune]int{}
	for range 2000 {
		p := Generate()
		if len(p) != 24 || strings.ContainsAny(p, "lo01") || Check("ann", p) != nil {
			t.Fatalf("generated %q", p)
		}
		seen[p] = true
		for _, c := range p {
			count[c]++
		}
	}
	if len(seen) != 2000 {
		t.Errorf("%d different passwords of 2,000", len(seen))
	}
	for _, c := range readable { // 1,500 of each are expected, with a standard deviation of 38
		if n := count[c]; n < 1200 || n > 1800 {
			t.Errorf("%c occurs %d times", c, n)
		}
	}
}
