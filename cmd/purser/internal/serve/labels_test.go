package serve

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// harmlessLabels are the labels of metrics whose values name nothing that is stored and nobody who uses
// it, with what their values are. Every other label must be among namingLabels.
var harmlessLabels = map[string]string{
	"algorithm": "of passwords' hashes",
	"check":     "of /readyz",
	"code":      "HTTP's",
	"database":  "names in the configuration of loose foreign keys",
	"kind":      "blob or manifest, or how bytes are kept",
	"limit":     "the limits that there are",
	"method":    "HTTP's, those that routes have",
	"of":        "what a disk is for",
	"operation": "of the blob store",
	"queue":     "of reviews",
	"quota":     "bytes, repositories or tags",
	"reason":    "constants",
	"result":    "constants",
	"revision":  "of the program",
	"route":     "patterns of paths",
	"state":     "constants",
	"table":     "of the database",
	"version":   "of the program",
	"worker":    "of the process",
}

// TestLabelsAreKnown: each label of a metric is known as one that names something, which metricsPage
// leaves out for strangers, or as one that doesn't.
func TestLabelsAreKnown(t *testing.T) {
	t.Parallel()
	used := map[string]bool{}
	for _, dir := range []string{"internal", "cmd", "loosefk"} {
		err := filepath.WalkDir(filepath.Join("..", "..", "..", "..", dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			for _, at := range labelsIn(file) {
				if at.label == "" {
					t.Errorf("%s: the labels of this metric aren't literals, so nobody knows what they name", set.Position(at.pos))
				} else if used[at.label] = true; harmlessLabels[at.label] == "" && !slices.Contains(namingLabels, at.label) {
					t.Errorf("%s: the label %s may name something that is stored, or who uses it: add it to namingLabels, or to the labels in this test", set.Position(at.pos), at.label)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for label := range harmlessLabels {
		if !used[label] {
			t.Errorf("no metric has the label %s", label)
		}
	}
	for _, label := range []string{"namespace", "reporter"} {
		if !used[label] {
			t.Errorf("the label %s, which metrics have, isn't found", label)
		}
	}
}

// labelAt is a label of a metric; "" if it isn't a literal.
type labelAt struct {
	label string
	pos   token.Pos
}

// labelArguments are the functions that make metrics with labels, with the argument that has these.
var labelArguments = map[string]int{"NewCounterVec": 1, "NewGaugeVec": 1, "NewHistogramVec": 1, "NewSummaryVec": 1, "NewDesc": 2}

// labelsIn returns the labels of the metrics that a file makes: by the functions of Prometheus, or by
// functions of the file that take labels as their last arguments.
func labelsIn(file *ast.File) (found []labelAt) {
	literals := func(pos token.Pos, list ...ast.Expr) {
		for _, e := range list {
			lit, ok := e.(*ast.BasicLit)
			if !ok || lit.Kind != token.STRING {
				found = append(found, labelAt{"", pos})
				continue
			}
			text, _ := strconv.Unquote(lit.Value) //nolint:errcheck // it was parsed
			found = append(found, labelAt{text, pos})
		}
	}
	helpers := map[string]int{} // by name, with the number of arguments before the labels
	inHelper := map[token.Pos]bool{}
	helper := func(name string, f *ast.FuncType, body *ast.BlockStmt) {
		n := f.Params.NumFields()
		if n == 0 {
			return
		}
		last := f.Params.List[len(f.Params.List)-1]
		if _, variadic := last.Type.(*ast.Ellipsis); !variadic || len(last.Names) != 1 {
			return
		}
		ast.Inspect(body, func(node ast.Node) bool {
			if call, ok := node.(*ast.CallExpr); ok {
				if i, ok := labelArguments[called(call)]; ok && i < len(call.Args) {
					if id, ok := call.Args[i].(*ast.Ident); ok && id.Name == last.Names[0].Name {
						helpers[name], inHelper[call.Pos()] = n-1, true
					}
				}
			}
			return true
		})
	}
	ast.Inspect(file, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.FuncDecl:
			if node.Body != nil {
				helper(node.Name.Name, node.Type, node.Body)
			}
		case *ast.AssignStmt:
			for i, right := range node.Rhs {
				if f, ok := right.(*ast.FuncLit); ok && len(node.Lhs) == len(node.Rhs) {
					if id, ok := node.Lhs[i].(*ast.Ident); ok {
						helper(id.Name, f.Type, f.Body)
					}
				}
			}
		}
		return true
	})
	ast.Inspect(file, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.CallExpr:
			if before, ok := helpers[called(node)]; ok && len(node.Args) > before {
				literals(node.Pos(), node.Args[before:]...)
			}
			i, ok := labelArguments[called(node)]
			if !ok || i >= len(node.Args) || inHelper[node.Pos()] {
				break
			}
			switch labels := node.Args[i].(type) {
			case *ast.CompositeLit:
				literals(node.Pos(), labels.Elts...)
			case *ast.Ident:
				if labels.Name != "nil" {
					literals(node.Pos(), labels)
				}
			default:
				literals(node.Pos(), labels)
			}
		case *ast.CompositeLit: // ConstLabels
			if s, ok := node.Type.(*ast.SelectorExpr); ok && s.Sel.Name == "Labels" {
				for _, e := range node.Elts {
					if pair, ok := e.(*ast.KeyValueExpr); ok {
						literals(node.Pos(), pair.Key)
					}
				}
			}
		}
		return true
	})
	return found
}

// called returns the name of the function or method that is called.
func called(call *ast.CallExpr) string {
	switch f := call.Fun.(type) {
	case *ast.SelectorExpr:
		return f.Sel.Name
	case *ast.Ident:
		return f.Name
	}
	return ""
}
