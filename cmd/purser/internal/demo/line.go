package demo

import (
	"fmt"
	"io"
	"time"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
)

// line prints what the tour tells: text that stays, and progress. On a terminal the progress is
// one line that is redrawn, elsewhere a new line whenever it has changed, but not more often
// than every two seconds.
type line struct {
	*command.ProgressLine
	last string // the progress that was last shown
}

func newLine(out io.Writer) *line {
	l := &line{ProgressLine: command.NewProgressLine(out)}
	if l.Every = 2 * time.Second; l.OnTerminal() {
		l.Every = watchEvery
	}
	return l
}

// say prints text that stays.
func (l *line) say(format string, args ...any) error {
	if _, err := fmt.Fprintf(l, format, args...); err != nil {
		return fmt.Errorf("printing: %w", err)
	}
	return nil
}

// progress shows how far the tour has come.
func (l *line) progress(text string) {
	if l.Due() && (l.OnTerminal() || text != l.last) {
		l.Tell("", "  "+text)
		l.last = text
	}
}
