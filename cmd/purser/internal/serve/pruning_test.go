package serve

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/policy"
)

// TestWarningOfDefaultPolicy: at its start, a server says what the default policy of its configuration
// surely wasn't meant to do.
func TestWarningOfDefaultPolicy(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	for text, want := range map[string]string{
		`{"method": "number_of_tags", "value": 100}`:                              "",
		`{"method": "creation_date", "value": "6m"}`:                              "6m is 6 minutes",
		`{"method": "creation_date", "value": "90d", "tagPattern": "pr-"}`:        "no anchors",
		`{"method": "number_of_tags", "value": 5, "groupBy": "(.+)-[0-9a-f]{7}"}`: "no anchors",
	} {
		policy, err := policy.Parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		out.Reset()
		warnOfDefault(log, &policy)
		if got := out.String(); !strings.Contains(got, want) || (got == "") != (want == "") || want != "" && !strings.Contains(got, "autoprune.default_policy") {
			t.Errorf("%s: the log has %q, want %q", text, got, want)
		}
	}
	warnOfDefault(log, nil)
}
