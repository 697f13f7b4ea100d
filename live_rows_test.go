package purser_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// withDeleted names the statements that may read or change rows of repositories and namespaces in
// the trash without saying so, by file and function, each with the reason.
var withDeleted = map[string]string{
	"internal/catalog/repositories.go:AliveRepositories": "pulls from before a deletion count, if the repository comes back",
	"internal/catalog/repositories.go:LivingNamespaces":  "pulls from before a deletion count, if the repository comes back",
	"internal/catalog/repositories.go:create":            "it inserts rows, and finds by xmin those that it has inserted",
	"internal/catalog/repositories.go:CreateNamespace":   "it inserts a row",
	"internal/catalog/trash/delete.go:deleteRepository":  "it deletes the row that it has locked and found undeleted",
	"internal/catalog/trash/delete.go:deleteNamespace":   "it deletes the row that it has locked and found undeleted",
	"internal/quota/count.go:compareContent":             "what is in the trash counts for the quota",
	"internal/catalog/visibility.go:SetVisibility":       "the transaction has locked the repository by lockRepository",
	"internal/catalog/visibility.go:SetStar":             "the transaction has locked the repository by lockRepository",
	"internal/protection/protection.go:Read":             "a rule acts on ids, so the rules of the trash act on nothing",
	"internal/protection/labels.go:labelsAllowed":        "it acts on ids, so the settings of the trash act on nothing",
	"internal/protection/labels.go:SetTagLabels":         "changeRules has locked the namespace by lockScope",
	"internal/catalog/trash/restore.go:checkLengths":     "all repositories of the namespace that comes back get other names",
	"internal/catalog/push_times.go:MendPushTimes":       "tags in the trash have push times too",
	"internal/catalog/push_times.go:mendPushTimes":       "tags in the trash have push times too",
	"internal/autoprune/housekeeping.go:leftovers":       "announcements stay for a namespace that may come back",
	"internal/autoprune/delete_tags.go:BlockPushes":      "the transaction has locked the repository by LockRepository",
	"internal/db/routines/invalidation.sql":              "notifications about a path that nobody can ask for harm nothing",
	"internal/db/routines/gc_tracking.sql":               "reviews of manifests in the trash are queued as always, and postponed",

	"internal/autoprune/autoprunetest/autoprunetest.go:Repository": "it inserts rows of tests",
}

// base finds the tables of repositories and namespaces in a statement.
var (
	baseRepositories = regexp.MustCompile(`\b(FROM|JOIN|UPDATE|INTO|USING) repositories\b`)
	baseNamespaces   = regexp.MustCompile(`\b(FROM|JOIN|UPDATE|INTO|USING) top_level_namespaces\b`)
)

// TestStatementsMindTheTrash checks that each SQL statement that names the table of repositories
// or namespaces says what it does with rows in the trash, by the column deleted_at or by the view
// live_repositories or live_namespaces, unless withDeleted names it.
func TestStatementsMindTheTrash(t *testing.T) {
	used := map[string]bool{}
	check := func(name, sql string) {
		mentions := strings.Contains(sql, "deleted_at") || strings.Contains(sql, "live_repositories")
		blind := baseRepositories.MatchString(sql) && !mentions || baseNamespaces.MatchString(sql) && !strings.Contains(sql, "deleted_at")
		if _, ok := withDeleted[name]; ok && blind {
			used[name] = true
		} else if blind {
			t.Errorf("%s names the table repositories or top_level_namespaces: use live_repositories or live_namespaces, or say by deleted_at what it does with rows in the trash:\n%s", name, sql)
		}
	}
	for _, dir := range []string{"internal", "cmd"} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil || d.IsDir() || strings.Contains(path, "catalogtest") || strings.Contains(path, "migrations") || strings.Contains(path, "/stats/"):
				return err
			case strings.HasSuffix(path, ".sql"):
				text, err := os.ReadFile(path)
				for statement := range strings.SplitSeq(string(text), "\n\n") {
					check(path, statement)
				}
				return err
			case !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
				return nil
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			for _, decl := range file.Decls {
				ast.Inspect(decl, func(n ast.Node) bool {
					if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
						if text, err := strconv.Unquote(lit.Value); err == nil {
							check(path+":"+declared(decl), text)
						}
					}
					return true
				})
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for name := range withDeleted {
		if !used[name] {
			t.Errorf("%s may disregard the trash, and doesn't", name)
		}
	}
}
