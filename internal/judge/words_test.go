package judge

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
	"testing"
)

// TestWordsOfCodes: each code has words, which aren't those of another and don't look like a code.
func TestWordsOfCodes(t *testing.T) {
	t.Parallel()
	f, err := parser.ParseFile(token.NewFileSet(), "decision.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	codes, seen := 0, make(map[string]Code)
	ast.Inspect(f, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok || len(v.Values) != 1 {
			return true
		}
		if kind, ok := v.Type.(*ast.Ident); !ok || kind.Name != "Code" {
			return true
		}
		text, _ := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
		code := Code(text)
		codes++
		words := codeWords[code]
		if words == "" || strings.Contains(words, "_") || seen[words] != "" {
			t.Errorf("the words of %s are %q (also of %q)", code, words, seen[words])
		}
		seen[words] = code
		return true
	})
	if codes != len(codeWords) || codes < 30 {
		t.Errorf("%d codes, and words for %d", codes, len(codeWords))
	}
}
