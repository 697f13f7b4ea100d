package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/term"
)

// progressLine shows the progress of a command: on a terminal as one line that is
// redrawn, elsewhere as a new line every few seconds. It is also a writer for other
// output to the same destination, which must not be mixed with the line.
type progressLine struct {
	out   io.Writer
	width func() int // of the terminal; nil if there is none
	every time.Duration

	mu    sync.Mutex
	last  time.Time // when a line was last written
	drawn bool      // the line is on the screen
}

// newProgressLine returns a line on out, which may be a terminal.
func newProgressLine(out io.Writer) *progressLine {
	p := &progressLine{out: out, every: 5 * time.Second, last: time.Now()}
	if f, ok := out.(*os.File); ok && isTerminal(f) {
		p.every, p.last = 100*time.Millisecond, time.Time{}
		p.width = func() int {
			if w, _, err := term.GetSize(int(f.Fd())); err == nil && w > 0 {
				return w
			}
			return 80
		}
	}
	return p
}

// tell shows the text, if it is due. On a terminal picture stands before it.
func (p *progressLine) tell(picture, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.last) < p.every {
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

// onTerminal says whether the line is redrawn on a terminal.
func (p *progressLine) onTerminal() bool { return p.width != nil }

// due says whether enough time has passed to show the next text.
func (p *progressLine) due() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Since(p.last) >= p.every
}

// clear removes the line from the screen.
func (p *progressLine) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.drawn {
		fmt.Fprint(p.out, "\r\x1b[K") //nolint:errcheck // nobody reads it
		p.drawn = false
	}
}

// Write removes the line and writes b.
func (p *progressLine) Write(b []byte) (int, error) {
	p.clear()
	return p.out.Write(b)
}
