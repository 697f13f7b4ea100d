package ui

import (
	"fmt"
	"math"
	"strings"
)

// Measures of a chart, in the units of its viewBox.
const (
	chartWidth, chartHeight         = 720, 190
	chartLeft, chartTop, chartRight = 64, 10, 8
	chartBottom                     = 22 // for the labels below the axis
)

// chart is a chart over time, as SVG. The table below it has the same numbers for those who can't
// see it.
type chart struct {
	ID, Title string
	// Text describes the chart to screen readers: its range and its greatest value.
	Text          string
	Width, Height int
	Bars          []bar
	Line, Area    string // points of a line and of the area below it, "" for bars
	Ticks         []tick // of the vertical axis
	Labels        []tick // of the horizontal axis
	Head          []string
	Rows          [][]string // of the table
}

type bar struct {
	X, Y, Width, Height float64
	Title               string
}

// tick is a place on an axis with its text.
type tick struct {
	At   float64
	Text string
	End  bool // the text ends at the place
}

// series are the values of a chart, one for each label.
type series struct {
	ID, Title, Unit string // Unit is the head of the values' column
	Labels          []string
	Values          []int64
	Format          func(any) string
	Binary          bool // round the axis to powers of 1024
}

func newChart(s series) chart {
	c := chart{ID: s.ID, Title: s.Title, Width: chartWidth, Height: chartHeight, Head: []string{"Day", s.Unit}}
	greatest, at := int64(0), 0
	for i, v := range s.Values {
		if v > greatest {
			greatest, at = v, i
		}
		c.Rows = append(c.Rows, []string{s.Labels[i], s.Format(v)})
	}
	if n := len(s.Values); n > 0 {
		c.Text = fmt.Sprintf("%s from %s to %s: at most %s, on %s; %s at the end.", s.Title, s.Labels[0], s.Labels[n-1],
			s.Format(greatest), s.Labels[at], s.Format(s.Values[n-1]))
	}
	top := niceMax(greatest, s.Binary)
	for _, part := range []float64{0, .5, 1} {
		if v := int64(part * float64(top)); part == 0 || v > 0 {
			c.Ticks = append(c.Ticks, tick{At: chartY(v, top), Text: s.Format(v)})
		}
	}
	c.label(s.Labels)
	return c
}

// label writes labels below the axis: the first, the middle one and the last.
func (c *chart) label(labels []string) {
	n := len(labels)
	for i, at := range []int{0, n / 2, n - 1} {
		if at < 0 || i > 0 && at == 0 {
			continue
		}
		c.Labels = append(c.Labels, tick{At: chartX(float64(at)+.5, n), Text: labels[at], End: i == 2})
	}
}

// barChart draws each value as a bar.
func barChart(s series) chart {
	c := newChart(s)
	top, n := topOf(s), len(s.Values)
	for i, v := range s.Values {
		if v <= 0 {
			continue
		}
		y := chartY(v, top)
		gap := min(1, (chartWidth-chartLeft-chartRight)/float64(n)/4)
		c.Bars = append(c.Bars, bar{
			X: round(chartX(float64(i), n) + gap/2), Y: y, Width: round(chartX(1, n) - chartX(0, n) - gap), Height: round(chartHeight - chartBottom - y),
			Title: s.Labels[i] + ": " + s.Format(v),
		})
	}
	return c
}

// lineChart draws the values as a line with the area below it. A single value is no line, and gets a
// bar.
func lineChart(s series) chart {
	if len(s.Values) < 2 {
		return barChart(s)
	}
	c := newChart(s)
	top, n := topOf(s), len(s.Values)
	var points []string
	for i, v := range s.Values {
		points = append(points, fmt.Sprintf("%g,%g", chartX(float64(i)+.5, n), chartY(v, top)))
	}
	c.Line = strings.Join(points, " ")
	floor := chartY(0, top)
	c.Area = fmt.Sprintf("%g,%g %s %g,%g", chartX(.5, n), floor, c.Line, chartX(float64(n)-.5, n), floor)
	return c
}

func topOf(s series) int64 {
	greatest := int64(0)
	for _, v := range s.Values {
		greatest = max(greatest, v)
	}
	return niceMax(greatest, s.Binary)
}

// niceMax returns the end of an axis: 1, 2 or 5 times a power of ten (of 1024 and ten, if binary)
// that isn't less than the value.
func niceMax(value int64, binary bool) int64 {
	unit := 1.0
	for binary && float64(value) >= unit*1024 {
		unit *= 1024
	}
	power := unit
	for power*10 < float64(value) {
		power *= 10
	}
	for _, n := range []float64{1, 2, 5, 10} {
		if end := n * power; end >= float64(value) {
			return int64(min(end, math.MaxInt64/2))
		}
	}
	return value
}

func chartX(i float64, n int) float64 {
	return round(chartLeft + i*(chartWidth-chartLeft-chartRight)/float64(max(n, 1)))
}

func chartY(v, top int64) float64 {
	return round(chartHeight - chartBottom - float64(v)*(chartHeight-chartTop-chartBottom)/float64(max(top, 1)))
}

func round(x float64) float64 { return math.Round(x*10) / 10 }
