package purser_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// listeners names where programs listen and where they make HTTP servers, by file and function, each with
// what bounds the connections. Whatever listens elsewhere may be held by unfinished requests.
var listeners = map[string]string{
	"cmd/purser/internal/serve/listen.go:open":      "bound, in the same file, wraps all of them in limit.Listen",
	"cmd/purser/internal/serve/manager.go:inherit":  "sockets of systemd, which bound wraps like others",
	"cmd/purser/internal/serve/listen.go:newServer": "the only server of the process, which takes the listener's ConnState",
	"cmd/loosefk/worker.go:serveMetrics":            "serveOn wraps it in limit.Listen",
	"cmd/loosefk/worker.go:serveOn":                 "the server takes the listener's ConnState",
	"internal/builtinpg/socket.go:holdsSockets":     "a socket that is closed at once, to find out whether the file system has sockets",
}

// listens are the functions and types of the standard library by which programs listen.
var listens = map[string][]string{
	"net":  {"Listen", "ListenTCP", "ListenUnix", "ListenConfig", "FileListener"},
	"tls":  {"Listen", "NewListener"},
	"http": {"Server", "Serve", "ServeTLS", "ListenAndServe", "ListenAndServeTLS"},
}

// TestListenersAreBounded checks that nothing listens or makes an HTTP server but what `listeners` names.
func TestListenersAreBounded(t *testing.T) {
	t.Parallel()
	used := map[string]bool{}
	for _, dir := range []string{"internal", "cmd", "loosefk"} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || layers[filepath.ToSlash(filepath.Dir(path))].testing {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			for _, decl := range file.Decls {
				for _, found := range listening(decl) {
					at := filepath.ToSlash(path) + ":" + declared(decl)
					if used[at] = true; listeners[at] == "" {
						t.Errorf("%s has %s: listen where the limits on connections are, or say in listeners_test.go what bounds it", at, found)
					}
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for at := range listeners {
		if !used[at] {
			t.Errorf("%s listens no more: take it out of the table", at)
		}
	}
}

// listening returns the names by which a declaration listens. A type that is only mentioned, as in
// *http.Server, is none of them.
func listening(decl ast.Decl) (found []string) {
	add := func(e ast.Expr) {
		if s, ok := e.(*ast.SelectorExpr); ok {
			if pkg, ok := s.X.(*ast.Ident); ok {
				for _, name := range listens[pkg.Name] {
					if s.Sel.Name == name {
						found = append(found, pkg.Name+"."+name)
					}
				}
			}
		}
	}
	ast.Inspect(decl, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			add(n.Fun)
		case *ast.CompositeLit:
			add(n.Type)
		case *ast.ValueSpec:
			add(n.Type)
		}
		return true
	})
	return found
}
