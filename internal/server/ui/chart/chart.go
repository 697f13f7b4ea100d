// Package chart draws charts as SVG: the numbers of their shapes and the texts beside them.
package chart

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// Measures of a chart, in the units of its viewBox.
const (
	chartWidth, chartHeight         = 720, 190
	chartLeft, chartTop, chartRight = 92, 14, 8
	chartBottom                     = 22 // for the labels below the axis
)

// Chart is a chart over time, as SVG. The table below it has the same numbers for those who can't
// see it.
type Chart struct {
	ID, Title string
	// Text describes the chart to screen readers: its range and its greatest value.
	Text          string
	Width, Height int
	Bars          []Bar
	Line, Area    string // points of a line and of the area below it, "" for bars
	Ticks         []Tick // of the vertical axis
	Labels        []Tick // of the horizontal axis
	Head          []string
	Rows          [][]string // of the table
}

type Bar struct {
	X, Y, Width, Height float64
	Title               string
}

// Tick is a place on an axis with its text.
type Tick struct {
	At   float64
	Text string
	End  bool // the text ends at the place
}

// Series are the values of a chart, one for each label.
type Series struct {
	ID, Title, Unit string // Unit is the head of the values' column
	Labels          []string
	Values          []int64
	Format          func(any) string
	Binary          bool // Round the axis to powers of 1024
}

func newChart(s Series) Chart {
	c := Chart{ID: s.ID, Title: s.Title, Width: chartWidth, Height: chartHeight, Head: []string{"Day", s.Unit}}
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
			c.Ticks = append(c.Ticks, Tick{At: chartY(v, top), Text: s.Format(v)})
		}
	}
	c.label(s.Labels)
	return c
}

// label writes labels below the axis: the first, the middle one and the last.
func (c *Chart) label(labels []string) {
	n := len(labels)
	for i, at := range []int{0, n / 2, n - 1} {
		if at < 0 || at >= n || i > 0 && at == 0 {
			continue
		}
		c.Labels = append(c.Labels, Tick{At: chartX(float64(at)+.5, n), Text: labels[at], End: i == 2})
	}
}

// BarChart draws each value as a bar.
func BarChart(s Series) Chart {
	c := newChart(s)
	top, n := topOf(s), len(s.Values)
	for i, v := range s.Values {
		if v <= 0 {
			continue
		}
		y := chartY(v, top)
		gap := min(1, (chartWidth-chartLeft-chartRight)/float64(n)/4)
		c.Bars = append(c.Bars, Bar{
			X: Round(chartX(float64(i), n) + gap/2), Y: y, Width: Round(chartX(1, n) - chartX(0, n) - gap), Height: Round(chartHeight - chartBottom - y),
			Title: s.Labels[i] + ": " + s.Format(v),
		})
	}
	return c
}

// LineChart draws the values as a line with the area below it. A single value is no line, and gets a
// bar.
func LineChart(s Series) Chart {
	if len(s.Values) < 2 {
		return BarChart(s)
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

func topOf(s Series) int64 {
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
	return Round(chartLeft + i*(chartWidth-chartLeft-chartRight)/float64(max(n, 1)))
}

func chartY(v, top int64) float64 {
	return Round(chartHeight - chartBottom - float64(v)*(chartHeight-chartTop-chartBottom)/float64(max(top, 1)))
}

func Round(x float64) float64 { return math.Round(x*10) / 10 }

// PlotDays is how many days the charts of the overview show.
const PlotDays = 30

// Plot is a chart with a bar for each day.
type Plot struct {
	ID, Title   string
	Desc        string // the chart in a sentence, for those who can't see it
	Total, Most string
	First, Last time.Time
	Bars        []PlotBar
}

// PlotBar is a rectangle. The chart is 100 high, and 10 wide for each day.
type PlotBar struct {
	X, Y, Height float64
	Text         string
}

// Width returns the width of the chart.
func (p *Plot) Width() int { return 10 * PlotDays }

// PlotOfDays draws values by day, of which the last is today (UTC). Days without a value have none
// in the map. `words` says a number with its unit, such as "3 pushes".
func PlotOfDays(id, title string, now time.Time, values map[time.Time]int64, words func(int64) string) *Plot {
	today := now.UTC().Truncate(24 * time.Hour)
	p := &Plot{ID: id, Title: title, First: today.AddDate(0, 0, 1-PlotDays), Last: today}
	var total, most int64
	days := make([]int64, PlotDays)
	for i := range days {
		days[i] = values[p.First.AddDate(0, 0, i)]
		total += days[i]
	}
	most = slices.Max(days)
	p.Total, p.Most = words(total), words(most)
	p.Desc = fmt.Sprintf("In the last %d days: %s.", PlotDays, p.Total)
	if most == 0 {
		return p
	}
	at := p.First.AddDate(0, 0, slices.Index(days, most))
	p.Desc += fmt.Sprintf(" The most on one day, %s: %s.", at.Format("2 January"), p.Most)
	for i, n := range days {
		if n <= 0 {
			continue
		}
		height := max(100*float64(n)/float64(most), 2) // a small number is still seen
		day := p.First.AddDate(0, 0, i)
		p.Bars = append(p.Bars, PlotBar{X: float64(10*i) + 1, Y: 100 - height, Height: height, Text: day.Format("Mon 2 Jan") + ": " + words(n)})
	}
	return p
}
