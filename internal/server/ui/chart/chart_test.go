package chart

import "testing"

func TestNiceMax(t *testing.T) {
	t.Parallel()
	for value, want := range map[int64]int64{0: 1, 1: 1, 2: 2, 3: 5, 7: 10, 10: 10, 11: 20, 499: 500, 501: 1000} {
		if got := niceMax(value, false); got != want {
			t.Errorf("niceMax(%d) is %d, want %d", value, got, want)
		}
	}
	for value, want := range map[int64]int64{100: 100, 1024: 1024, 1500: 2048, 3 << 30: 5 << 30} {
		if got := niceMax(value, true); got != want {
			t.Errorf("niceMax(%d) is %d, want %d in powers of 1024", value, got, want)
		}
	}
}

// TestEmptyChart: a chart of no values is an empty one.
func TestEmptyChart(t *testing.T) {
	t.Parallel()
	s := Series{ID: "x", Title: "X", Unit: "U", Format: func(v any) string { return "" }}
	if c := LineChart(s); len(c.Bars)+len(c.Labels)+len(c.Rows) > 0 || c.Line != "" {
		t.Errorf("a chart of no values is %+v", c)
	}
}
