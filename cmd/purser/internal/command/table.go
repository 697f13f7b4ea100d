package command

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/purser-registry/purser/internal/oci"
)

const (
	// columnGap are the spaces between two columns of a table.
	columnGap = 2
	// minColumn is the width to which a column may be clipped, in characters, and minDigest that of a column
	// of digests: what is left of one is still accepted by commands.
	minColumn = 8
	minDigest = len("sha256:") + oci.MinShortDigest + 1
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
	widths, least := make([]int, len(lines[0])), make([]int, len(lines[0]))
	for _, cells := range lines {
		for i, cell := range cells {
			widths[i], least[i] = max(widths[i], utf8.RuneCountInString(cell)), max(least[i], minColumn)
			if strings.HasPrefix(cell, "sha256:") || strings.HasPrefix(cell, "sha512:") {
				least[i] = minDigest
			}
		}
	}
	if width > 0 {
		fitColumns(widths, least, width)
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

// fitColumns narrows the widest columns until they fit into a line, none to less than `least`. The first
// column, which names what the line is about, is narrowed last: it is what one copies.
func fitColumns(widths, least []int, width int) {
	total := columnGap * (len(widths) - 1)
	for _, w := range widths {
		total += w
	}
	for ; total > width; total-- {
		widest := 0
		for i := 1; i < len(widths); i++ {
			if widths[i] > least[i] && (widest == 0 || widths[i] > widths[widest]) {
				widest = i
			}
		}
		if widths[widest] <= least[widest] {
			return // a terminal that is so narrow wraps the lines
		}
		widths[widest]--
	}
}

// clip returns a text of at most `width` characters.
func clip(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	return string([]rune(text)[:max(0, width-1)]) + "…"
}
