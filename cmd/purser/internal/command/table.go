package command

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"
)

const (
	// columnGap are the spaces between two columns of a table.
	columnGap = 2
	// minColumn is the width to which a column may be clipped, in characters.
	minColumn = 8
)

// TerminalWidth returns how many characters fit into a line of the terminal `w`; 0 if w is none.
func TerminalWidth(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok || !IsTerminal(f) {
		return 0
	}
	if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 0 {
		return width
	}
	return 80
}

// Table prints `rows` under a header, each of which has as many cells as the header. It prints "-" for an
// empty cell, and replaces control characters. On a terminal, cells that would make lines longer than the
// terminal is wide end with … before; elsewhere nothing is clipped.
func Table(w io.Writer, header []string, rows [][]string) error {
	lines := make([][]string, 0, len(rows)+1)
	lines = append(lines, header)
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			if cells[i] = Printable(cell); cell == "" {
				cells[i] = "-"
			}
		}
		lines = append(lines, cells)
	}
	return writeTable(w, lines, TerminalWidth(w))
}

// writeTable prints lines of cells in columns, as wide as `width` allows; 0: any width.
func writeTable(w io.Writer, lines [][]string, width int) error {
	widths := make([]int, len(lines[0]))
	for _, cells := range lines {
		for i, cell := range cells {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	if width > 0 {
		fitColumns(widths, width)
	}
	var out strings.Builder
	for _, cells := range lines {
		for i, cell := range cells {
			cell = clip(cell, widths[i])
			out.WriteString(cell)
			if i+1 < len(cells) {
				out.WriteString(strings.Repeat(" ", widths[i]+columnGap-utf8.RuneCountInString(cell)))
			}
		}
		out.WriteByte('\n')
	}
	if _, err := io.WriteString(w, out.String()); err != nil {
		return fmt.Errorf("printing: %w", err)
	}
	return nil
}

// fitColumns narrows the widest columns until they fit into a line. The first column, which names what the
// line is about, is narrowed last: it is what one copies.
func fitColumns(widths []int, width int) {
	total := columnGap * (len(widths) - 1)
	for _, w := range widths {
		total += w
	}
	for total > width {
		rest := widths[min(1, len(widths)-1):]
		widest := slices.Index(rest, slices.Max(rest)) + len(widths) - len(rest)
		if widths[widest] <= minColumn {
			widest = 0
		}
		if widths[widest] <= minColumn {
			return // a terminal that is so narrow wraps the lines
		}
		widths[widest]--
		total--
	}
}

// clip returns a text of at most `width` characters.
func clip(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	return string([]rune(text)[:max(0, width-1)]) + "…"
}
