//go:build unix

package builtinpg

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
)

const (
	tailLines   = 20
	longestLine = 16 << 10 // bytes; the rest of a longer line is dropped

	// logPrefix is PostgreSQL's setting log_line_prefix; pgLine parses lines that begin with
	// it.
	logPrefix = "[%p] "
)

var pgLine = regexp.MustCompile(`^\[(\d+)\] ([A-Z]+\d?):\s+(.*)$`)

// logSink writes the lines of a server's standard error to the log and keeps the last ones.
type logSink struct {
	log *slog.Logger
	// stopping is true while the server is being stopped. Then errors about terminated
	// connections are expected, and logged at a lower level.
	stopping atomic.Bool

	mu   sync.Mutex
	tail []string

	level slog.Level // of the last message; only drain uses it
}

func newLogSink(log *slog.Logger) *logSink {
	return &logSink{log: log.With("from", "postgres"), level: slog.LevelWarn}
}

// drain reads the server's standard error until the end of the pipe. It must not stop earlier:
// a full pipe would block the server.
func (l *logSink) drain(r io.Reader) {
	lines := bufio.NewReaderSize(r, longestLine)
	for {
		line, more, err := lines.ReadLine()
		if err != nil {
			return
		}
		l.add(string(line))
		for more && err == nil {
			_, more, err = lines.ReadLine()
		}
	}
}

func (l *logSink) add(line string) {
	l.mu.Lock()
	l.tail = append(l.tail, line)
	if len(l.tail) > tailLines {
		l.tail = l.tail[1:]
	}
	l.mu.Unlock()

	m := pgLine.FindStringSubmatch(line)
	if m == nil {
		if !strings.HasPrefix(line, "\t") { // a tab marks a continuation of the previous message
			l.level = slog.LevelWarn
		}
		l.log.Log(context.Background(), l.level, strings.TrimSpace(line))
		return
	}
	if level, ok := severityLevel(m[2]); ok {
		l.level = level
	}
	if m[2] == "FATAL" && l.stopping.Load() {
		l.level = slog.LevelDebug
	}
	l.log.Log(context.Background(), l.level, m[3], "severity", m[2], "pid", m[1])
}

// severityLevel returns the log level for a severity of PostgreSQL, and false for a text that
// isn't a severity. ERROR (a failed statement) and FATAL (a failed connection) are warnings,
// since the client reports them; PANIC stops the whole server and is an error. Lines that
// repeat statements have the level debug. DETAIL and HINT aren't severities: such a line keeps
// the level of its message.
func severityLevel(severity string) (slog.Level, bool) {
	switch severity {
	case "STATEMENT", "QUERY", "CONTEXT", "LOG", "INFO", "NOTICE", "DEBUG", "DEBUG1", "DEBUG2", "DEBUG3", "DEBUG4", "DEBUG5":
		return slog.LevelDebug, true
	case "WARNING", "ERROR", "FATAL":
		return slog.LevelWarn, true
	case "PANIC":
		return slog.LevelError, true
	}
	return 0, false
}

// fail adds the last lines of the server's log to an error.
func (l *logSink) fail(err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.tail) == 0 {
		return err
	}
	return &outputError{err: err, output: strings.Join(l.tail, "\n")}
}

// outputError is an error together with the program's output.
type outputError struct {
	err    error
	output string
}

func (e *outputError) Error() string {
	return e.err.Error() + "; the last lines of its log:\n" + e.output
}
func (e *outputError) Unwrap() error { return e.err }

// withOutput adds a program's output to its error.
func withOutput(err error, output []byte) error {
	text := strings.TrimSpace(string(output))
	if err == nil || text == "" {
		return err
	}
	lines := strings.Split(text, "\n")
	if len(lines) > tailLines {
		lines = lines[len(lines)-tailLines:]
	}
	var already *outputError
	if errors.As(err, &already) {
		return err
	}
	return &outputError{err: err, output: strings.Join(lines, "\n")}
}
