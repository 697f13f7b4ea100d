package catalogtest

import (
	"testing"

	"github.com/purser-registry/purser/internal/catalog/trash"
)

// Statements that put the repository acme/app or the namespace acme into the trash.
const (
	TrashRepository = "UPDATE repositories SET path = '#1/acme/app', deleted_path = path, deleted_at = now(), purge_after = now() + interval '1 h' WHERE path = 'acme/app'"
	TrashNamespace  = "UPDATE top_level_namespaces SET name = '#1/acme', deleted_name = name, deleted_at = now(), purge_after = now() + interval '1 h' WHERE name = 'acme'"
)

// Trashed returns what is in the trash.
func (b Bundle) Trashed(t *testing.T) []trash.Trashed {
	t.Helper()
	list, next, err := b.Trash.List(t.Context(), "", "", 100)
	if err != nil || next != "" {
		t.Fatalf("trash: %v, next %q", err, next)
	}
	return list
}

// ExpireTrash makes everything in the trash due.
func (b Bundle) ExpireTrash(t *testing.T) {
	t.Helper()
	b.Exec(t, "UPDATE repositories SET purge_after = now() - interval '1 s' WHERE deleted_at IS NOT NULL")
	b.Exec(t, "UPDATE top_level_namespaces SET purge_after = now() - interval '1 s' WHERE deleted_at IS NOT NULL")
}
