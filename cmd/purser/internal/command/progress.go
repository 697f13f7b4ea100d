package command

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
	"unicode"
)

// ProgressLine shows the progress of a command: on a terminal as a single line that is
// redrawn, elsewhere as a new line every ten seconds. Other output to the same destination
// must go through Write, which first removes the line from the terminal.
type ProgressLine struct {
	out   io.Writer
	width func() int // of the terminal; nil if there is none
	Every time.Duration

	mu    sync.Mutex
	last  time.Time // when a line was last written
	drawn bool      // the line is on the screen

	step    string // what Measure measures
	samples []sample
}

// NewProgressLine returns a ProgressLine that writes to `out`, which may be a terminal.
func NewProgressLine(out io.Writer) *ProgressLine {
	p := &ProgressLine{out: out, Every: 10 * time.Second, last: time.Now()}
	if f, ok := out.(*os.File); ok && IsTerminal(f) && os.Getenv("TERM") != "dumb" {
		p.Every, p.last = 100*time.Millisecond, time.Time{}
		p.width = func() int { return TerminalWidth(f) }
	}
	return p
}

// Tell shows `text`, unless the last text was shown less than Every ago. On a terminal,
// `picture` is shown in front of the text.
func (p *ProgressLine) Tell(picture, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.last) < p.Every {
		return
	}
	p.last = time.Now()
	if p.width == nil {
		fmt.Fprintln(p.out, text) //nolint:errcheck // nobody reads it
		return
	}
	line := []rune(strings.Map(printable, picture+text))
	// The line is cut to less than the terminal's width, since the terminal would wrap it.
	line = line[:min(len(line), max(0, p.width()-1))]
	fmt.Fprint(p.out, "\r"+string(line)+"\x1b[K") //nolint:errcheck // nobody reads it
	p.drawn = true
}

// printable returns a space for a character that isn't printed, such as those of a service's error that would
// move the cursor.
func printable(r rune) rune {
	if unicode.IsPrint(r) {
		return r
	}
	return ' '
}

// OnTerminal says whether the line is redrawn on a terminal.
func (p *ProgressLine) OnTerminal() bool { return p.width != nil }

// Due says whether enough time has passed since the last text, so that Tell would show a
// new one.
func (p *ProgressLine) Due() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Since(p.last) >= p.Every
}

// Clear removes the line from the screen.
func (p *ProgressLine) Clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
}

func (p *ProgressLine) clear() {
	if p.drawn {
		fmt.Fprint(p.out, "\r\x1b[K") //nolint:errcheck // nobody reads it
		p.drawn = false
	}
}

// Write removes the line and writes b. No line is drawn in between.
func (p *ProgressLine) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	return p.out.Write(b)
}
