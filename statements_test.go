package purser_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// spliced names the functions that may assemble an SQL statement from texts outside of the
// function, each with the reason.
var spliced = map[string]string{
	"internal/audit/partitions.go:monthsInDefault":      partition,
	"internal/audit/partitions.go:create":               partition,
	"internal/audit/partitions.go:moveEntries":          partition,
	"internal/audit/partitions.go:findUncounted":        partition,
	"internal/audit/partitions.go:deleteExpiredEntries": partition,
	"internal/audit/list.go:query":                      among,
	"internal/audit/list.go:conditions":                 among,
	"internal/audit/list_among.go:among":                among,
	"internal/gc/review.go:NextReview":                  queue,
	"internal/gc/status.go:queue":                       queue,
}

const (
	partition = "a partition's name and bounds can't be arguments"
	among     = "lists of one namespace and of many have the same columns and conditions"
	queue     = "the two review queues differ in their names"
)

// keyword matches a text that is an SQL statement or a part of one.
var keyword = regexp.MustCompile(`\b(SELECT|INSERT INTO|UPDATE|DELETE FROM|FROM|WHERE|RETURNING)\b`)

// TestStatementsAreWhole checks that each SQL statement is written as one text or
// assembled within one function, so that a reader finds all of it in one place. A
// statement may not use constants, variables or results of functions from elsewhere,
// unless spliced names the function. The packages of loosefk are not checked: their
// statements are about tables that the caller names.
func TestStatementsAreWhole(t *testing.T) {
	used := map[string]bool{}
	for _, dir := range []string{"internal", "cmd"} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			for _, decl := range file.Decls {
				name := path + ":" + declared(decl)
				parts := foreignParts(decl)
				if _, ok := spliced[name]; ok && len(parts) > 0 {
					used[name] = true
				} else if len(parts) > 0 {
					t.Errorf("%s builds a statement from %s, which is written elsewhere: write it out, or make it a function in internal/db/routines",
						name, strings.Join(parts, ", "))
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for name := range spliced {
		if !used[name] {
			t.Errorf("%s is allowed to build statements, and doesn't", name)
		}
	}
}

// declared returns the name of the function that decl declares, or of its first constant
// or variable.
func declared(decl ast.Decl) string {
	switch d := decl.(type) {
	case *ast.FuncDecl:
		return d.Name.Name
	case *ast.GenDecl:
		for _, s := range d.Specs {
			if v, ok := s.(*ast.ValueSpec); ok {
				return v.Names[0].Name
			}
		}
	}
	return ""
}

// foreignParts returns the parts of SQL statements in decl that are declared outside of
// decl.
func foreignParts(decl ast.Decl) []string {
	local := map[string]bool{}
	if f, ok := decl.(*ast.FuncDecl); ok {
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.AssignStmt:
				for _, left := range n.Lhs {
					if id, ok := left.(*ast.Ident); ok && n.Tok == token.DEFINE {
						local[id.Name] = true
					}
				}
			case *ast.ValueSpec:
				for _, id := range n.Names {
					local[id.Name] = true
				}
			case *ast.Field:
				for _, id := range n.Names {
					local[id.Name] = true
				}
			case *ast.RangeStmt:
				for _, e := range []ast.Expr{n.Key, n.Value} {
					if id, ok := e.(*ast.Ident); ok {
						local[id.Name] = true
					}
				}
			}
			return true
		})
	}
	var parts []string
	note := func(operands []ast.Expr) {
		if !slices.ContainsFunc(operands, isStatement) {
			return
		}
		for _, o := range operands {
			if p := foreign(o, local); p != "" && !slices.Contains(parts, p) {
				parts = append(parts, p)
			}
		}
	}
	ast.Inspect(decl, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BinaryExpr:
			if n.Op == token.ADD {
				note(operands(n))
				return false
			}
		case *ast.CallExpr:
			if s, ok := n.Fun.(*ast.SelectorExpr); ok && s.Sel.Name == "Sprintf" {
				note(texts(n.Args))
			}
		}
		return true
	})
	return parts
}

// verb matches a formatting verb of Sprintf, such as %s or %[2]d. Its groups are the
// explicit argument index, if any, and the verb's letter.
var verb = regexp.MustCompile(`%(?:\[(\d+)\])?([a-z])`)

// texts returns the arguments of a Sprintf call, including the format, without those that
// the format uses only as numbers (%d).
func texts(args []ast.Expr) []ast.Expr {
	format, ok := args[0].(*ast.BasicLit)
	if !ok {
		return args
	}
	text := map[int]bool{0: true}
	next := 1
	for _, v := range verb.FindAllStringSubmatch(format.Value, -1) {
		if v[1] != "" {
			next, _ = strconv.Atoi(v[1])
		}
		text[next] = text[next] || v[2] != "d"
		next++
	}
	var list []ast.Expr
	for i, a := range args {
		if text[i] {
			list = append(list, a)
		}
	}
	return list
}

// operands returns the operands of a chain of additions.
func operands(e ast.Expr) []ast.Expr {
	if b, ok := e.(*ast.BinaryExpr); ok && b.Op == token.ADD {
		return append(operands(b.X), operands(b.Y)...)
	}
	return []ast.Expr{e}
}

func isStatement(e ast.Expr) bool {
	l, ok := e.(*ast.BasicLit)
	return ok && l.Kind == token.STRING && keyword.MatchString(l.Value)
}

// foreign returns the name of an operand that is declared outside of the function: a
// constant, a variable, or a call of one of the module's functions. For other operands it
// returns "".
func foreign(e ast.Expr, local map[string]bool) string {
	switch e := e.(type) {
	case *ast.Ident:
		if !local[e.Name] {
			return e.Name
		}
	case *ast.SelectorExpr:
		if x, ok := e.X.(*ast.Ident); ok && !local[x.Name] {
			return x.Name + "." + e.Sel.Name
		}
	case *ast.CallExpr:
		switch f := e.Fun.(type) {
		case *ast.Ident:
			if !local[f.Name] {
				return f.Name + "(…)"
			}
		case *ast.SelectorExpr:
			if x, ok := f.X.(*ast.Ident); ok && !slices.Contains([]string{"strings", "strconv", "fmt", "pgx"}, x.Name) {
				return x.Name + "." + f.Sel.Name + "(…)"
			}
		}
	}
	return ""
}
