package serve

import (
	"bufio"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/config"
)

// terminal returns the two ends of a pseudo-terminal: that of a terminal's window, and that of a program.
func terminal(t *testing.T) (window, program *os.File) {
	t.Helper()
	window, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("making a pseudo-terminal: %v", err)
		}
		t.Skipf("needs a pseudo-terminal: %v", err)
	}
	t.Cleanup(func() { window.Close() }) //nolint:errcheck // only read
	if err := unix.IoctlSetPointerInt(int(window.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(window.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { program.Close() }) //nolint:errcheck // nothing is lost
	return window, program
}

// TestShowSteps: while a server starts, the terminal says at once what is being done, and each further
// step. Lines of the log stay whole, and nothing is left of the steps before the announcement.
func TestShowSteps(t *testing.T) {
	t.Parallel()
	window, program := terminal(t)
	if err := window.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Logf("reads can't be limited: %v", err)
	}
	in := bufio.NewReader(window)
	var seen strings.Builder
	read := func(want string) {
		t.Helper()
		for !strings.Contains(seen.String(), want) {
			b, err := in.ReadByte()
			if err != nil {
				t.Fatalf("%v, and the terminal shows %q, want %q", err, seen.String(), want)
			}
			seen.WriteByte(b)
		}
	}
	line, ready := command.NewProgressLine(program), newReadiness()
	if !command.IsTerminal(logOutput(line, program)) {
		t.Error("the log doesn't know that it goes to a terminal, where it is text")
	}
	hide := showSteps(line, ready)
	read("\rStarting: the settings (")
	ready.waits("the built-in PostgreSQL: making its cluster")
	read("\rStarting: the built-in PostgreSQL: making its cluster (")
	if _, err := fmt.Fprintln(logOutput(line, program), "a line of the log"); err != nil {
		t.Fatal(err)
	}
	read("\r\x1b[Ka line of the log\r\n")
	ready.waits("the blob store")
	read("\rStarting: the blob store (")
	hide()
	hide()
	if _, err := fmt.Fprintln(program, "Purser is ready."); err != nil {
		t.Fatal(err)
	}
	read("Purser is ready.\r\n")
	if shown := seen.String(); !strings.HasSuffix(shown, ")\x1b[K\r\x1b[KPurser is ready.\r\n") {
		t.Errorf("the terminal shows %q at the end", shown)
	}
}

// TestNoStepsElsewhere: a start whose output isn't a terminal writes no lines that are redrawn.
func TestNoStepsElsewhere(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	line, ready := command.NewProgressLine(&out), newReadiness()
	hide := showSteps(line, ready)
	ready.waits("the blob store")
	hide()
	showSteps(nil, ready)()
	if out.Len() > 0 || logOutput(line, &out) != &out {
		t.Errorf("%q was written", out.String())
	}
}

// TestRunForShowsSteps: a registry within another command shows its steps on that command's terminal.
func TestRunForShowsSteps(t *testing.T) {
	t.Parallel()
	window, program := terminal(t)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load("", []string{"PURSER_DATA_DIR=" + filepath.Join(file, "data"), "PURSER_HTTP_ADDR=127.0.0.1:0", "PURSER_HTTP_DEBUG_ADDR=off"})
	if err != nil {
		t.Fatal(err)
	}
	err = RunFor(t.Context(), cfg, slog.New(slog.DiscardHandler), command.NewProgressLine(program), func(string) {
		t.Error("it is ready in a directory that can't be made")
	})
	if err == nil {
		t.Error("it ended without an error")
	}
	if _, err := fmt.Fprintln(program, "the end"); err != nil {
		t.Fatal(err)
	}
	shown := make([]byte, 100)
	if n, err := window.Read(shown); err != nil || !strings.HasPrefix(string(shown[:n]), "\rStarting: ") {
		t.Errorf("the terminal shows %q, %v", shown[:n], err)
	}
}
