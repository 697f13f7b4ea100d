package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
)

// TestManual: each command has a page with its description and its flags, and the formatter that
// man uses has no complaint about any of them, where it is installed.
func TestManual(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "man1")
	if code := execute(t.Context(), []string{"man", dir}, nil, new(strings.Builder), os.Stderr); code != 0 {
		t.Fatalf("exit status %d", code)
	}
	pages := 0
	var check func(*cobra.Command)
	check = func(cmd *cobra.Command) {
		pages++
		text, err := os.ReadFile(filepath.Join(dir, manualName(cmd)+".1"))
		if err != nil {
			t.Error(err)
		}
		for _, want := range []string{".TH ", ".SH NAME\n", ".SH SYNOPSIS\n", ".SH DESCRIPTION\n", roff(cmd.Short)} {
			if !strings.Contains(string(text), want) {
				t.Errorf("the page of %q lacks %q", cmd.CommandPath(), want)
			}
		}
		for _, c := range cmd.Commands() {
			if c.IsAvailableCommand() {
				check(c)
			}
		}
	}
	check(newRoot(new(command.Source)))
	files, err := filepath.Glob(dir + "/*")
	if err != nil || len(files) < pages { // there are also those of "completion", which only a run adds
		t.Errorf("%d pages for %d commands (%v)", len(files), pages, err)
	}
	if groff, err := exec.LookPath("groff"); err == nil {
		out, err := exec.Command(groff, append([]string{"-Kutf8", "-man", "-Tutf8", "-ww", "-z"}, files...)...).CombinedOutput()
		if err != nil || len(out) > 0 {
			t.Errorf("groff: %v\n%s", err, out)
		}
	}
}

func TestRoff(t *testing.T) {
	t.Parallel()
	got := roffText("A --flag.\n.hidden and 'quoted'\n\n  example \\ 1\nEnd.")
	want := "A \\-\\-flag.\n\\&.hidden and 'quoted'\n.PP\n.PP\n.nf\n  example \\e 1\n.fi\n.PP\nEnd.\n"
	if got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
