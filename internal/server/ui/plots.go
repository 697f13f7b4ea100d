package ui

import (
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/purser-registry/purser/internal/api"
)

// plotDays is how many days the charts of the overview show.
const plotDays = 30

// plot is a chart with a bar for each day.
type plot struct {
	ID, Title   string
	Desc        string // the chart in a sentence, for those who can't see it
	Total, Most string
	First, Last time.Time
	Bars        []plotBar
}

// plotBar is a rectangle. The chart is 100 high, and 10 wide for each day.
type plotBar struct {
	X, Y, Height float64
	Text         string
}

// Width returns the width of the chart.
func (p *plot) Width() int { return 10 * plotDays }

// plotOfDays draws values by day, of which the last is today (UTC). Days without a value have none
// in the map. `words` says a number with its unit, such as "3 pushes".
func plotOfDays(id, title string, now time.Time, values map[time.Time]int64, words func(int64) string) *plot {
	today := now.UTC().Truncate(24 * time.Hour)
	p := &plot{ID: id, Title: title, First: today.AddDate(0, 0, 1-plotDays), Last: today}
	var total, most int64
	days := make([]int64, plotDays)
	for i := range days {
		days[i] = values[p.First.AddDate(0, 0, i)]
		total += days[i]
	}
	most = slices.Max(days)
	p.Total, p.Most = words(total), words(most)
	p.Desc = fmt.Sprintf("In the last %d days: %s.", plotDays, p.Total)
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
		p.Bars = append(p.Bars, plotBar{X: float64(10*i) + 1, Y: 100 - height, Height: height, Text: day.Format("Mon 2 Jan") + ": " + words(n)})
	}
	return p
}

// lastDays are the days of the charts in the inputs of histories.
var lastDays = api.HistoryDays{Days: plotDays}

// pullPlot draws the pulls on each day, from a history. It returns nil if the registry doesn't count
// pulls or can't read the counts now, or if the client may not see them.
func pullPlot[I any](q *request, of api.Operation[I, api.PullHistory], in I) (*plot, error) {
	history, err := run(q, of, in)
	switch {
	case hidden(err) || statusOf(err) == http.StatusServiceUnavailable:
		return nil, nil
	case err != nil:
		return nil, err
	}
	pulls := make(map[time.Time]int64, len(history.Days))
	for _, d := range history.Days {
		day, err := time.Parse(time.DateOnly, d.Day)
		if err != nil {
			return nil, err
		}
		pulls[day] = d.Pulls
	}
	return plotOfDays("pulls", "Pulls", time.Now(), pulls, func(n int64) string { return plural(n, "pull", "pulls") }), nil
}
