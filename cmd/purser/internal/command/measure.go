package command

import (
	"fmt"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
)

// Measured says how far a command has come.
type Measured struct {
	Step  string  // what it does; each step is measured by itself
	Text  string  // the numbers so far
	Share float64 // done of the step, from 0 to 1; 0: unknown
	// Bytes and Count of Unit, such as "tag", are done so far in the step. The rate is that of the bytes if
	// there are some, else of Count.
	Bytes, Count int64
	Unit         string
}

// sample is how far a step had come at a time.
type sample struct {
	at           time.Time
	share        float64
	bytes, count int64
}

const (
	// rateWindow is how far back the rate and the time left look: what was slow before says little.
	rateWindow = 30 * time.Second
	// rateAfter is how long a step must have run before they are told.
	rateAfter = 2 * time.Second
)

// Measure shows how far the command has come, as Tell does, with the rate, and with the time that is left if
// the share is known. It may be called as often as something is done.
func (p *ProgressLine) Measure(m Measured) {
	if !p.Due() {
		return
	}
	picture, text := p.measure(m, time.Now())
	p.Tell(picture, text)
}

func (p *ProgressLine) measure(m Measured, now time.Time) (picture, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	next := sample{now, m.Share, m.Bytes, m.Count}
	if last := len(p.samples) - 1; p.step != m.Step || last < 0 || m.Bytes < p.samples[last].bytes || m.Count < p.samples[last].count || m.Share < p.samples[last].share-0.01 {
		p.step, p.samples = m.Step, nil
	}
	for len(p.samples) > 1 && now.Sub(p.samples[1].at) >= rateWindow {
		p.samples = p.samples[1:]
	}
	if last := len(p.samples) - 1; last < 0 || now.Sub(p.samples[last].at) >= time.Second {
		p.samples = append(p.samples, next)
	}
	var parts []string
	for _, part := range []string{m.Step, m.Text} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	first := p.samples[0]
	if took := now.Sub(first.at); took >= rateAfter {
		if rate := float64(m.Bytes-first.bytes) / took.Seconds(); rate >= 1 {
			parts = append(parts, Size(int64(rate))+"/s")
		} else if rate := float64(m.Count-first.count) / took.Seconds(); rate > 0 && m.Unit != "" {
			parts = append(parts, perSecond(rate, m.Unit))
		}
		if done := m.Share - first.share; done > 0 && m.Share < 1 {
			parts = append(parts, "about "+timeLeft(time.Duration((1-m.Share)/done*float64(took)))+" left")
		}
	}
	if m.Share > 0 {
		picture = Bar(m.Share) + " "
	}
	return picture, strings.Join(parts, ", ")
}

// perSecond formats a rate of things.
func perSecond(rate float64, unit string) string {
	if rate < 10 {
		return fmt.Sprintf("%.1f %ss/s", rate, unit)
	}
	return humanize.Comma(int64(rate)) + " " + unit + "s/s"
}

// timeLeft formats an estimate, which is never precise.
func timeLeft(d time.Duration) string {
	switch {
	case d > 365*24*time.Hour:
		return "more than a year"
	case d >= 48*time.Hour:
		return fmt.Sprintf("%d days", int(d.Hours()/24+0.5))
	case d >= 90*time.Minute:
		return fmt.Sprintf("%d h", int(d.Hours()+0.5))
	case d >= 90*time.Second:
		return fmt.Sprintf("%d min", int(d.Minutes()+0.5))
	}
	return fmt.Sprintf("%d s", max(1, int(d.Seconds()+0.5)))
}

// Bar draws a progress bar for a share from 0 to 1.
func Bar(share float64) string {
	const width = 20
	share = min(1, max(0, share))
	full := int(share * width)
	return fmt.Sprintf("[%s%s] %3d%%", strings.Repeat("#", full), strings.Repeat("-", width-full), int(share*100))
}

// Share returns done of total; 0 for a total that isn't known.
func Share(done, total int64) float64 {
	if total <= 0 {
		return 0
	}
	return float64(done) / float64(total)
}
