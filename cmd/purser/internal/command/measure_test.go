package command

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestMeasure: the rate and the time left are those of the step, as it has gone lately.
func TestMeasure(t *testing.T) {
	t.Parallel()
	p, now := &ProgressLine{}, time.Unix(1_000_000, 0)
	at := func(second int, m Measured) string {
		picture, text := p.measure(m, now.Add(time.Duration(second)*time.Second))
		return picture + text
	}
	for _, c := range []struct {
		second int
		m      Measured
		want   string
	}{
		{0, Measured{Step: "writing blobs", Text: "0 of 100"}, "writing blobs, 0 of 100"},
		{1, Measured{Step: "writing blobs", Text: "1 of 100", Share: 0.01, Bytes: 1 << 20}, "[--------------------]   1% writing blobs, 1 of 100"},
		{10, Measured{Step: "writing blobs", Text: "10 of 100", Share: 0.1, Bytes: 10 << 20}, "[##------------------]  10% writing blobs, 10 of 100, 1.0 MiB/s, about 2 min left"},
		{40, Measured{Step: "writing blobs", Text: "70 of 100", Share: 0.7, Bytes: 70 << 20}, "[##############------]  70% writing blobs, 70 of 100, 2.0 MiB/s, about 15 s left"},
		{41, Measured{Step: "looking for blobs", Text: "1 of 9", Share: 0.1, Count: 1, Unit: "blob"}, "[##------------------]  10% looking for blobs, 1 of 9"},
		{51, Measured{Step: "looking for blobs", Text: "1 of 9", Share: 0.1, Count: 1, Unit: "blob"}, "[##------------------]  10% looking for blobs, 1 of 9"},
		{61, Measured{Step: "looking for blobs", Text: "9 of 9", Share: 1, Count: 5, Unit: "blob"}, "[####################] 100% looking for blobs, 9 of 9, 0.2 blobs/s"},
		{62, Measured{Step: "looking for blobs", Text: "anew", Share: 0.5}, "[##########----------]  50% looking for blobs, anew"},
	} {
		if got := at(c.second, c.m); got != c.want {
			t.Errorf("after %d s: %q, want %q", c.second, got, c.want)
		}
	}
	for d, want := range map[time.Duration]string{0: "1 s", 89 * time.Second: "89 s", 100 * time.Second: "2 min", 3 * time.Hour: "3 h", 72 * time.Hour: "3 days", 1 << 62: "more than a year"} {
		if got := timeLeft(d); got != want {
			t.Errorf("%s: %s, want %s", d, got, want)
		}
	}
}

// TestMeasureElsewhere: without a terminal a line is written each 10 seconds, without a bar.
func TestMeasureElsewhere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		p := NewProgressLine(&out)
		for i := range 45 {
			p.Measure(Measured{Step: "copying", Text: "tags", Share: float64(i) / 100, Count: int64(i), Unit: "tag"})
			time.Sleep(time.Second)
		}
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(lines) != 4 || lines[3] != "copying, tags, 1.0 tags/s, about 60 s left" || strings.ContainsAny(out.String(), "\r\x1b#") {
			t.Errorf("%q", lines)
		}
	})
}
