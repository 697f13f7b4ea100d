package client

import (
	"testing"
	"time"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
)

func TestPrintable(t *testing.T) {
	t.Parallel()
	if got := command.Printable("a\x1b[31mé\u009b\n\x7f"); got != "a�[31mé���" {
		t.Errorf("%q", got)
	}
}

func TestPulled(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.Local)
	for n, want := range map[int64]string{0: "0 pulls", 1: "1 pull", 2: "2 pulls", 1700: "1.7K pulls", 12_345: "10K+ pulls"} {
		if got := pulled(&at, &n); got != "2026-03-01 12:00:00 ("+want+")" {
			t.Errorf("%d: %s", n, got)
		}
	}
	if got := pulled(nil, nil) + pulls(nil); got != "" {
		t.Errorf("nothing known: %q", got)
	}
}
