//go:build all

package e2e

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// docPage is a page of the documentation whose commands a test runs. The paths below /srv on the
// page are paths below a directory of the test.
type docPage struct {
	t      *testing.T
	name   string
	text   string
	blocks []*docBlock
	dir    string            // stands for /srv
	env    []string          // of all commands
	values map[string]string // what the page has as an example, and what the test has instead
	exits  map[string]int    // the exit codes of commands that don't end with 0
	quiet  bool              // what commands print isn't compared
	as     func(*exec.Cmd)   // changes commands, such as the account that runs them
	stdout string            // of the last command; progress is on the other output
}

// docBlock is a block of code.
type docBlock struct {
	line          int
	section, lang string
	text          string
	used          bool
}

// readPage reads a page. When the test ends, it has run each block of commands on the page.
func readPage(t *testing.T, name string, env ...string) *docPage {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("..", name))
	if err != nil {
		t.Fatal(err)
	}
	p := &docPage{t: t, name: name, text: string(content), blocks: blocksOf(string(content)), dir: newDir(t), values: map[string]string{}, exits: map[string]int{}}
	p.env = append(env, "PATH="+filepath.Dir(binary())+":"+os.Getenv("PATH"), "HOME="+p.dir, "PURSER_DATA_DIR="+p.path("purser"))
	t.Cleanup(func() {
		for _, b := range p.blocks {
			if !b.used && !t.Failed() && (b.lang == "sh" || b.lang == "console") {
				t.Errorf("%s:%d: no test runs this: %s", name, b.line, b.text)
			}
		}
	})
	return p
}

var docFence = regexp.MustCompile("^( *)```([a-z]*)$")

func blocksOf(text string) []*docBlock {
	var blocks []*docBlock
	var open *docBlock
	section, indent := "", ""
	for i, line := range strings.Split(text, "\n") {
		fence := docFence.FindStringSubmatch(line)
		switch {
		case fence != nil && open == nil:
			open, indent = &docBlock{line: i + 1, section: section, lang: fence[2]}, fence[1]
		case fence != nil:
			blocks, open = append(blocks, open), nil
		case open != nil:
			open.text += strings.TrimPrefix(line, indent) + "\n"
		case strings.HasPrefix(line, "#"):
			section = strings.TrimLeft(line, "# ")
		}
	}
	return blocks
}

// path returns the path that stands for a path below /srv.
func (p *docPage) path(name string) string { return filepath.Join(p.dir, name) }

// here replaces what the page has as examples.
func (p *docPage) here(text string) string {
	for example, value := range p.values {
		text = strings.ReplaceAll(text, example, value)
	}
	return strings.ReplaceAll(text, "/srv/", p.dir+"/")
}

// Section returns the blocks of a section, and marks them as used.
func (p *docPage) Section(section string) []*docBlock {
	p.t.Helper()
	var found []*docBlock
	for _, b := range p.blocks {
		if b.section == section {
			b.used = true
			found = append(found, b)
		}
	}
	if len(found) == 0 {
		p.t.Fatalf("%s has no block of code in a section %q", p.name, section)
	}
	return found
}

// Run runs the blocks of a section that have commands, and returns what they printed.
func (p *docPage) Run(section string) string {
	p.t.Helper()
	var all strings.Builder
	for _, b := range p.Section(section) {
		all.WriteString(p.RunBlock(b))
	}
	return all.String()
}

// RunBlock runs the commands of a block. A console block shows what its commands print, and the
// commands must print that, up to numbers and times.
func (p *docPage) RunBlock(b *docBlock) string {
	p.t.Helper()
	switch b.lang {
	case "sh":
		return p.command(b.text)
	case "console":
	default:
		return ""
	}
	var all strings.Builder
	for _, part := range strings.Split("\n"+b.text, "\n$ ")[1:] {
		command, want, _ := strings.Cut(part, "\n")
		for strings.HasSuffix(command, "\\") {
			next, rest, _ := strings.Cut(want, "\n")
			command, want = command+"\n"+next, rest
		}
		got := p.command(command)
		if want != "" && !p.quiet && !likeDoc(p.here(want), got) && !likeDoc(p.here(want), p.stdout) {
			p.t.Errorf("%s:%d: %s: it prints\n%s\non the page it prints\n%s", p.name, b.line, command, got, want)
		}
		all.WriteString(got)
	}
	return all.String()
}

// Inline runs a command that the page has within a sentence.
func (p *docPage) Inline(command string) string {
	p.t.Helper()
	if !strings.Contains(p.text, "`"+command+"`") {
		p.t.Fatalf("%s has no command `%s`", p.name, command)
	}
	return p.command(command)
}

// command runs a script, which must end with the exit code that the page tells of.
func (p *docPage) command(script string) string {
	p.t.Helper()
	cmd := exec.CommandContext(p.t.Context(), "bash", "-euo", "pipefail", "-c", p.here(script))
	cmd.Dir, cmd.Env = p.dir, childEnv(p.env...)
	if p.as != nil {
		p.as(cmd)
	}
	var stdout strings.Builder
	both := newOutput()
	cmd.Stdout, cmd.Stderr = io.MultiWriter(&stdout, both), both
	err := cmd.Run()
	p.stdout = stdout.String()
	if want := p.exits[strings.TrimSpace(script)]; cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != want {
		p.t.Fatalf("%s: %s: %v, want exit code %d\n%s", p.name, script, err, want, both.String())
	}
	return docLog.ReplaceAllString(both.String(), "")
}

// docLog are lines of the log, which the page doesn't show.
var docLog = regexp.MustCompile(`(?m)^\{"time":.*\n`)

// docVariable are the parts of an output that differ from run to run.
var docVariable = []struct {
	pattern *regexp.Regexp
	name    string
}{
	{regexp.MustCompile(`\d{8}T\d{6}\.\d{3}Z`), "ID"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?Z?`), "TIME"},
	{regexp.MustCompile(`\b(\d+(\.\d+)?(ms|µs|h|m|s))+\b`), "DURATION"},
	{regexp.MustCompile(`\d[\d,.]* ([KMGT]i)?B\b`), "SIZE"},
	{regexp.MustCompile(`\b[\d,]*\d\b`), "N"},
}

// likeDoc returns whether a command printed what the page shows. On the page, … stands for any
// text, and in a line of its own for any lines.
func likeDoc(page, printed string) bool {
	for _, v := range docVariable {
		page, printed = v.pattern.ReplaceAllString(page, v.name), v.pattern.ReplaceAllString(printed, v.name)
	}
	want := regexp.QuoteMeta(strings.TrimSpace(page))
	want = strings.ReplaceAll(want, "\n…\n", "\n(?:.*\n)*?")
	want = regexp.MustCompile(`\n…$`).ReplaceAllString(want, "(?s:.*)")
	want = strings.ReplaceAll(want, "…", ".*")
	return regexp.MustCompile(`^` + want + `$`).MatchString(strings.TrimSpace(printed))
}

// Registry starts a registry in the page's data directory, which is stopped when the test ends.
func (p *docPage) Registry(env ...string) *registry {
	p.t.Helper()
	r := startRegistry(p.t, options{dataDir: p.path("purser"), env: append(p.serverEnv(), env...)})
	p.setServer(r)
	return r
}

// serverEnv is the environment of a server: that of the commands without what serve's flags say.
func (p *docPage) serverEnv() []string {
	var env []string
	for _, v := range p.env {
		if !strings.HasPrefix(v, "PURSER_DATA_DIR=") && !strings.HasPrefix(v, "PURSER_SERVER=") {
			env = append(env, v)
		}
	}
	return env
}

// setServer lets commands ask this registry.
func (p *docPage) setServer(r *registry) { p.env = append(p.env, "PURSER_SERVER="+r.URL()) }

// move renames a file or directory below the page's directory.
func (p *docPage) move(from, to string) {
	p.t.Helper()
	if err := os.Rename(p.path(from), p.path(to)); err != nil {
		p.t.Fatal(err)
	}
}

// expect fails the test if the output of a command lacks a text.
func (p *docPage) expect(output string, want ...string) {
	p.t.Helper()
	for _, w := range want {
		if !strings.Contains(output, w) {
			p.t.Errorf("%s: no %q in: %s", p.name, w, output)
		}
	}
}

// appendTo appends the text of a block to a file.
func (p *docPage) appendTo(file string, b *docBlock) {
	p.t.Helper()
	f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = fmt.Fprint(f, p.here(b.text))
		f.Close() //nolint:errcheck // a lost write is seen
	}
	if err != nil {
		p.t.Fatal(err)
	}
}
