package demo

import (
	"bytes"
	"testing"
)

// TestProgressIsToldOnce: where there is no terminal, progress that hasn't changed isn't
// printed again.
func TestProgressIsToldOnce(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	l := newLine(&out)
	l.Every = 0
	for _, text := range []string{"1 tag", "1 tag", "2 tags", "2 tags"} {
		l.progress(text)
	}
	if err := l.say("%d left\n", 0); err != nil {
		t.Fatal(err)
	}
	if want := "  1 tag\n  2 tags\n0 left\n"; out.String() != want {
		t.Errorf("it printed %q, want %q", out.String(), want)
	}
}

func TestOnLoopback(t *testing.T) {
	t.Parallel()
	for addr, want := range map[string]bool{
		"127.0.0.1:0": true, "127.1.2.3:5000": true, "localhost:5000": true, "[::1]:0": true,
		":5000": false, "0.0.0.0:0": false, "[::]:0": false, "192.0.2.1:5000": false, "example.com:5000": false, "127.0.0.1": false,
	} {
		if got := onLoopback(addr); got != want {
			t.Errorf("onLoopback(%q) is %t", addr, got)
		}
	}
}
