package command

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/config"
)

// TestLinesAreOne: a text with several lines, such as joined errors, is one line in the log.
func TestLinesAreOne(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"text", "json"} {
		var out bytes.Buffer
		log, err := NewLogger(&out, config.Log{Level: "info", Format: format})
		if err != nil {
			t.Fatal(err)
		}
		log.With("why", "a\r\n\n\tb").Info("first\nsecond", "error", errors.Join(errors.New("one"), fmt.Errorf("two\n three")))
		text := out.String()
		for _, want := range []string{"a; b", "first; second", "one; two; three"} {
			if !strings.Contains(text, want) {
				t.Errorf("%s: %q lacks %q", format, text, want)
			}
		}
		if strings.Count(text, "\n") != 1 || strings.Contains(text, `\n`) {
			t.Errorf("%s: there are several lines in %q", format, text)
		}
	}
}

// TestDurationsAreReadable: the log never has durations as a number of nanoseconds.
func TestDurationsAreReadable(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"text", "json"} {
		var out bytes.Buffer
		log, err := NewLogger(&out, config.Log{Level: "info", Format: format})
		if err != nil {
			t.Fatal(err)
		}
		log.With("drain", 30*time.Second).Info("x", slog.Group("g", "took", 57725*time.Microsecond))
		for _, want := range []string{"30s", "57.725ms"} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s: %s has no %s", format, out.String(), want)
			}
		}
	}
}
