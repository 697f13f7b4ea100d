// Command analyzers checks the code of Purser. It is staticcheck, with the analyzers of go vet
// and five more. So one program types the tree once, and keeps in staticcheck's cache what it
// has found out about packages that haven't changed. It is a module of its own, so that the
// analyzers' dependencies stay out of Purser's go.mod.
//
// An exception from one of the five is a comment //nolint:name // reason at the end of a line.
// It suppresses the findings of the analyzer with that name on the line. An exception without
// a reason has no effect. An exception from staticcheck is its //lint:ignore.
package main

import (
	"go/token"
	"os"
	"regexp"
	"strings"

	"github.com/kisielk/errcheck/errcheck"
	"github.com/nishanths/exhaustive/passes/exhaustive"
	"github.com/polyfloyd/go-errorlint/errorlint"
	sqlclose "github.com/ryanrolds/sqlclosecheck/pkg/analyzer"
	"github.com/timakin/bodyclose/passes/bodyclose"
	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/suite/vet"
	"honnef.co/go/tools/lintcmd"
	"honnef.co/go/tools/simple"
	"honnef.co/go/tools/staticcheck"
	"honnef.co/go/tools/stylecheck"
	"honnef.co/go/tools/unused"
)

func main() {
	more := []*analysis.Analyzer{
		errcheck.Analyzer,       // an error that is returned and never read
		errorlint.NewAnalyzer(), // errors compared with == although they may be wrapped
		exhaustive.Analyzer,     // a switch that lacks a constant of its type
		bodyclose.Analyzer,      // a response whose body is never closed
		sqlclose.NewAnalyzer(),  // rows that are never closed
	}
	errcheck.DefaultExcludedSymbols = append(errcheck.DefaultExcludedSymbols,
		// errcheck must not report these calls when their error is ignored: the code reads
		// the error where losing output matters, and not elsewhere.
		"fmt.Fprint", "fmt.Fprintf", "fmt.Fprintln",
		"(io.Closer).Close", "(*os.File).Close", "(net.Conn).Close", "(net.Listener).Close")
	set(exhaustive.Analyzer, "d", "true")
	set(exhaustive.Analyzer, "typeignore", `^(reflect|regexp/syntax)\.`)
	for _, a := range more {
		explained(a)
	}

	cmd := lintcmd.NewCommand("analyzers")
	cmd.ParseFlags(os.Args[1:])
	cmd.AddAnalyzers(simple.Analyzers...)
	cmd.AddAnalyzers(staticcheck.Analyzers...)
	cmd.AddAnalyzers(stylecheck.Analyzers...)
	cmd.AddAnalyzers(unused.Analyzer)
	for _, a := range append(more, vet.Suite...) {
		adapt(a)
		cmd.AddBareAnalyzers(a)
	}
	cmd.Run()
}

func set(a *analysis.Analyzer, flag, value string) {
	if err := a.Flags.Set(flag, value); err != nil {
		panic(err)
	}
}

// adapt gives the analyzer what staticcheck's runner lacks: a way to read files, and findings
// that carry the analyzer's name, since the runner drops those of unknown names.
func adapt(a *analysis.Analyzer) {
	run := a.Run
	a.Run = func(pass *analysis.Pass) (any, error) {
		own := *pass
		own.ReadFile = os.ReadFile
		own.Report = func(d analysis.Diagnostic) {
			d.Category = a.Name
			pass.Report(d)
		}
		return run(&own)
	}
}

// explained changes the analyzer `a` so that it reports no findings in tests, and none on
// lines that end in a comment //nolint:NAME // reason with the analyzer's name.
func explained(a *analysis.Analyzer) {
	exception := regexp.MustCompile(`^//nolint:(\w+,)*` + a.Name + `(,\w+)* // \S`)
	run := a.Run
	a.Run = func(pass *analysis.Pass) (any, error) {
		excepted := map[line]bool{}
		for _, f := range pass.Files {
			for _, group := range f.Comments {
				for _, c := range group.List {
					if exception.MatchString(c.Text) {
						excepted[place(pass, c.Pos())] = true
					}
				}
			}
		}
		own := *pass
		own.Report = func(d analysis.Diagnostic) {
			if at := place(pass, d.Pos); !excepted[at] && !strings.HasSuffix(at.file, "_test.go") {
				pass.Report(d)
			}
		}
		if strings.HasSuffix(pass.Pkg.Path(), "test") {
			own.Report = func(analysis.Diagnostic) {}
		}
		return run(&own)
	}
}

type line struct {
	file   string
	number int
}

func place(pass *analysis.Pass, pos token.Pos) line {
	p := pass.Fset.Position(pos)
	return line{p.Filename, p.Line}
}
