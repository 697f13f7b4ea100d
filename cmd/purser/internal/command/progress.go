package command

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/term"
)

// ProgressLine shows the progress of a command: on a terminal as one line that is
// redrawn, elsewhere as a new line every few seconds. It is also a writer for other
// output to the same destination, which must not be mixed with the line.
type ProgressLine struct {
	out   io.Writer
	width func() int // of the terminal; nil if there is none
	Every time.Duration

	mu    sync.Mutex
	last  time.Time // when a line was last written
	drawn bool      // the line is on the screen
}

// NewProgressLine returns a line on out, which may be a terminal.
func NewProgressLine(out io.Writer) *ProgressLine {
	p := &ProgressLine{out: out, Every: 5 * time.Second, last: time.Now()}
	if f, ok := out.(*os.File); ok && IsTerminal(f) {
		p.Every, p.last = 100*time.Millisecond, time.Time{}
		p.width = func() int {
			if w, _, err := term.GetSize(int(f.Fd())); err == nil && w > 0 {
				return w
			}
			return 80
		}
	}
	return p
}

// Tell shows the text, if it is due. On a terminal picture stands before it.
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
	line := picture + text
	// Text as wide as the terminal would wrap.
	line = line[:min(len(line), max(0, p.width()-1))]
	fmt.Fprint(p.out, "\r"+line+"\x1b[K") //nolint:errcheck // nobody reads it
	p.drawn = true
}

// OnTerminal says whether the line is redrawn on a terminal.
func (p *ProgressLine) OnTerminal() bool { return p.width != nil }

// Due says whether enough time has passed to show the next text.
func (p *ProgressLine) Due() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Since(p.last) >= p.Every
}

// Clear removes the line from the screen.
func (p *ProgressLine) Clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.drawn {
		fmt.Fprint(p.out, "\r\x1b[K") //nolint:errcheck // nobody reads it
		p.drawn = false
	}
}

// Write removes the line and writes b.
func (p *ProgressLine) Write(b []byte) (int, error) {
	p.Clear()
	return p.out.Write(b)
}
