package ui

import (
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/server/ui/format"

	"github.com/purser-registry/purser/internal/api"
)

// TestQuotaWords: a quota that limits nothing says so, and one that is exceeded says what happens; nothing
// is called broken because of it. A size is shown in the unit in which it was typed.
func TestQuotaWords(t *testing.T) {
	t.Parallel()
	limit := int64(10e9)
	reject, warning := api.QuotaLimit{Type: "Reject", Percent: 100}, api.QuotaLimit{Type: "Warning", Percent: 80}
	for _, c := range []struct {
		view            api.QuotaView
		effect, concern string
	}{
		{api.QuotaView{Limits: []api.QuotaLimit{reject}}, "limits nothing: it has no limit", ""},
		{api.QuotaView{LimitBytes: &limit}, "limits nothing: no step", ""},
		{api.QuotaView{LimitBytes: &limit, Limits: []api.QuotaLimit{warning}}, "only sends notices", ""},
		{api.QuotaView{LimitBytes: &limit, UsedBytes: 11e9, Limits: []api.QuotaLimit{warning}}, "above its limit of bytes. Pushes go on", "nothing is refused"},
		{api.QuotaView{LimitBytes: &limit, UsedBytes: 11e9, Limits: []api.QuotaLimit{reject}}, "pushes that need more are refused", "pushes that need more are refused"},
		{api.QuotaView{LimitBytes: &limit, UsedBytes: 95e8, Limits: []api.QuotaLimit{reject}}, "", "uses 95 % of its quota of bytes."},
		{api.QuotaView{LimitBytes: &limit, UsedBytes: 1e9, Limits: []api.QuotaLimit{reject}}, "", ""},
	} {
		c.view.Counted = true
		if got := quotaEffect(c.view); !strings.Contains(got, c.effect) || c.effect == "" && got != "" {
			t.Errorf("%+v: %q, want %q", c.view, got, c.effect)
		}
		found, full := quotaConcern(c.view)
		if full != (c.concern != "") || !strings.Contains(found.Text, c.concern) || full && found.Word() == "broken" {
			t.Errorf("%+v: %+v, want %q", c.view, found, c.concern)
		}
	}
	for n, want := range map[int64]string{
		10e9: "10 GB", 10 << 30: "10 GiB", 1<<40 + 1<<39: "1.5 TiB", 1: "1 B", 1500: "1.5 kB", 512 << 20: "512 MiB", 1e15: "1 PB", 123456789: "123456789 B",
	} {
		if got := format.ExactBytes(n); got != want {
			t.Errorf("%d bytes are %q, want %q", n, got, want)
		}
	}
	if lines := quotaLines(api.QuotaView{LimitBytes: &limit, UsedBytes: 25e8}); lines[0].Used != "2.5 GB" || lines[0].Limit != "10 GB" {
		t.Errorf("%+v", lines[0])
	}
}
