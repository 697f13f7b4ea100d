package testtool

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Shown is a command line that the project shows to people.
type Shown struct {
	File string // below the checkout
	Line string // variable parts of it are "X"
	// Block says that it stands in a block of a page that people copy, not within a sentence.
	Block bool
}

var (
	shownFence = regexp.MustCompile("(?ms)^ *```([a-z]*)\n(.*?)^ *```$")
	continued  = regexp.MustCompile(`\\\n *`)
	verb       = regexp.MustCompile(`%(\[\d\])?[sqdv]`)
	gluedVerb  = regexp.MustCompile(`([a-z])%(?:\[\d\])?s`) // what may be flags
	action     = regexp.MustCompile(`{{[^}]*}}`)
	ifAction   = regexp.MustCompile(`{{ *(if|with|end|else)\b[^}]*}}`)
	codeTag    = regexp.MustCompile(`(?s)<(?:code|pre)>(.*?)</(?:code|pre)>`)
)

// ShownCommands finds the command lines of certain programs that the project shows: in blocks and
// sentences of the documentation, on pages of the web UI, in the texts of the code (messages, errors,
// help) and in files for deployments. What comes behind a command, such as a pipe, may be in its line.
func ShownCommands(programs ...string) ([]Shown, error) {
	root, err := checkout()
	if err != nil {
		return nil, err
	}
	names := `(?:` + strings.Join(programs, "|") + `)`
	const run = `(?:docker exec [a-z]+ )?`
	f := &shownFinder{
		span: regexp.MustCompile("(?s)`(" + names + ` [^` + "`]*)`"),
		// Behind variables, sudo, a prompt, a pipe or "$(" there is a command too.
		line: regexp.MustCompile(`(?m)(?:^|[|&;(]|\bsudo|\bexec|- run:) *(?:\$ )?(?:[A-Z_]+=\S* +)*(` + names + ` [^\n)|&;]*)`),
		// Quotes within a text are double, single or those of Markdown; a line in them may have others.
		quoted: regexp.MustCompile(`"` + run + `(` + names + ` [a-z-][^"\n]*)"|(?:^|[ (])'` + run + `(` + names + ` [a-z-][^'\n]*)'|` + "`" + run + `(` + names + ` [a-z-][^` + "`" + `\n]*)` + "`"),
		// Indented, it is a line to copy. Flags may follow the program's name in a text that is put together.
		start: regexp.MustCompile(`(?m)^ +(?:(?:log in|push) +)?(` + names + ` [a-z…-][^\n]*)`),
		whole: regexp.MustCompile(`^(` + names + ` [a-z…-][^\n]*)`),
	}
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		name, _ := filepath.Rel(root, path) //nolint:errcheck // path is below root
		switch {
		case err != nil:
			return err
		case d.IsDir() && (slices.Contains([]string{"testdata", "bin", "bench", "tools", "e2e", "testtool"}, d.Name()) || strings.HasPrefix(d.Name(), ".") && path != root):
			return fs.SkipDir
		case d.IsDir() || strings.HasSuffix(name, "_test.go") || name == "CHANGELOG.md":
			return nil
		}
		return f.file(path, filepath.ToSlash(name))
	})
	return f.found, err
}

type shownFinder struct {
	span, line, quoted, start, whole *regexp.Regexp
	found                            []Shown
}

func (f *shownFinder) file(path, name string) error {
	ending := filepath.Ext(name)
	if !slices.Contains([]string{".md", ".html", ".go", ".yaml", ".yml", ".service", ".conf", ".txt"}, ending) {
		return nil
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	text := string(content)
	switch ending {
	case ".md":
		f.page(name, text)
	case ".html":
		for _, m := range codeTag.FindAllStringSubmatch(text, -1) {
			shown := action.ReplaceAllString(ifAction.ReplaceAllString(m[1], ""), "X")
			f.add(name, f.line.FindAllStringSubmatch(shown, -1), true)
		}
	case ".go":
		return f.code(name, text)
	default:
		f.add(name, f.span.FindAllStringSubmatch(text, -1), false)
		f.add(name, f.line.FindAllStringSubmatch(strings.ReplaceAll(text, "#   ", ""), -1), true)
	}
	return nil
}

func (f *shownFinder) page(name, text string) {
	text = continued.ReplaceAllString(text, " ")
	for _, m := range shownFence.FindAllStringSubmatch(text, -1) {
		if m[1] == "" || m[1] == "sh" || m[1] == "console" || m[1] == "yaml" {
			f.add(name, f.line.FindAllStringSubmatch(m[2], -1), true)
		}
	}
	f.add(name, f.span.FindAllStringSubmatch(shownFence.ReplaceAllString(text, ""), -1), false)
}

// code looks at the texts of a file of Go.
func (f *shownFinder) code(name, text string) error {
	file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.SkipObjectResolution)
	if err != nil {
		return fmt.Errorf("parsing what may show commands: %w", err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		e, ok := n.(ast.Expr)
		if !ok {
			return true
		}
		text, made := literal(e)
		if !made {
			return true
		}
		text = gluedVerb.ReplaceAllString(continued.ReplaceAllString(text, " "), "$1 … ")
		text = verb.ReplaceAllString(text, "X")
		f.add(name, f.quoted.FindAllStringSubmatch(text, -1), false)
		f.add(name, f.start.FindAllStringSubmatch(text, -1), true)
		f.add(name, f.whole.FindAllStringSubmatch(text, -1), false)
		return false
	})
	return nil
}

// literal returns the text of a string literal, or of something that is put together from
// literals; what isn't one is "X" then, or "…" where it may be a word or several.
func literal(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(e.Value)
		return text, err == nil && e.Kind == token.STRING
	case *ast.BinaryExpr:
		left, ok := literal(e.X)
		right, ok2 := literal(e.Y)
		if !ok {
			left = "X"
		}
		if !ok2 && shownWord.MatchString(left) {
			right = " … "
		} else if !ok2 {
			right = "X"
		}
		return left + right, e.Op == token.ADD && (ok || ok2)
	}
	return "", false
}

// shownWord is the end of a text that what follows can't belong to.
var shownWord = regexp.MustCompile(`[a-z]$`)

// comment is what stands behind a command: another column, or a comment of the shell.
var comment = regexp.MustCompile(`( {3,}| # ).*`)

func (f *shownFinder) add(file string, matches [][]string, block bool) {
	for _, m := range matches {
		line := strings.Join(strings.Fields(comment.ReplaceAllString(strings.Join(m[1:], ""), "")), " ")
		if s := (Shown{file, line, block}); !slices.Contains(f.found, s) {
			f.found = append(f.found, s)
		}
	}
}
