package command

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/config"
)

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
