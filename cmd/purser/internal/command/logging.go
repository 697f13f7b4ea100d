package command

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"

	"golang.org/x/term"

	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/pgsession"
)

// NewLogger makes a logger that writes to `w`. If the setting log.format is auto, the
// format is text if w is a terminal, and otherwise JSON.
func NewLogger(w io.Writer, c config.Log) (*slog.Logger, error) {
	log, _, err := NewLeveledLogger(w, c)
	return log, err
}

// NewLeveledLogger is like NewLogger. It also returns the variable that holds the log
// level, by which the caller may change the level later.
func NewLeveledLogger(w io.Writer, c config.Log) (*slog.Logger, *slog.LevelVar, error) {
	level := new(slog.LevelVar)
	if err := level.UnmarshalText([]byte(c.Level)); err != nil {
		return nil, nil, fmt.Errorf("log.level: %w", err)
	}
	o := &slog.HandlerOptions{Level: level, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Value.Kind() == slog.KindDuration { // JSON would have nanoseconds without a unit
			a.Value = slog.StringValue(a.Value.Duration().String())
		}
		if err, ok := a.Value.Any().(error); ok {
			a.Value = slog.StringValue(pgsession.Explain(err, "").Error())
		}
		if a.Value.Kind() == slog.KindString {
			a.Value = slog.StringValue(oneLine(a.Value.String()))
		}
		return a
	}}
	if c.Format == "text" || c.Format == "auto" && IsTerminal(w) {
		return slog.New(slog.NewTextHandler(w, o)), level, nil
	}
	return slog.New(slog.NewJSONHandler(w, o)), level, nil
}

// oneLine joins the lines of a text, such as the texts of several errors, since searches of a log find lines.
func oneLine(text string) string {
	if !strings.ContainsAny(text, "\r\n") {
		return text
	}
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\r' || r == '\n' })
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return strings.Join(slices.DeleteFunc(lines, func(line string) bool { return line == "" }), "; ")
}

// IsTerminal says whether what is written to w is seen on a terminal, also behind a line of progress.
func IsTerminal(w io.Writer) bool {
	if p, ok := w.(*ProgressLine); ok {
		return p.OnTerminal()
	}
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
