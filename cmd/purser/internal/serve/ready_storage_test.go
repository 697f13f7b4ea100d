package serve

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/db"
)

// lacks returns the rights of a role that lacks one on a table.
func lacks(table, right string) db.Rights {
	return db.Rights{Role: "purser", Login: "purser", Schema: "public", Owner: "purser",
		Lacks: []db.Lack{{Kind: "table", Name: table, SQL: "public." + table, Rights: []string{right}}}}
}

// TestReadyTable has the rows of the table "What /readyz means" in docs/configuration.md: what
// fails, and whether the server is ready then. It is, as long as pulls can succeed.
func TestReadyTable(t *testing.T) {
	t.Parallel()
	fails := errors.New("it fails")
	for name, c := range map[string]struct {
		database, store, statistics error
		full                        error
		rights                      db.Rights
		ready                       bool
		text                        string
	}{
		"nothing":   {ready: true, text: "database: ok\nstorage: ok\npushes: ok\nstatistics: ok\n"},
		"database":  {database: fails, text: "database: it fails\nstorage: ok\npushes: ok\nstatistics: ok\n"},
		"store":     {store: fails, text: "database: ok\nstorage: it fails\npushes: it fails\nstatistics: ok\n"},
		"wrong":     {store: blob.ErrWrongStore, text: fmt.Sprintf("database: ok\nstorage: %[1]v\npushes: %[1]v\nstatistics: ok\n", blob.ErrWrongStore)},
		"read-only": {store: blob.ErrReadOnly, ready: true, text: fmt.Sprintf("database: ok\nstorage: ok\npushes: %v\nstatistics: ok\n", blob.ErrReadOnly)},
		"full":      {full: errors.New("the disk of the blobs is full"), ready: true, text: "database: ok\nstorage: ok\npushes: the disk of the blobs is full\nstatistics: ok\n"},
		"standby": {rights: db.Rights{Schema: "public", Standby: true, ReadOnly: true},
			text: "database: " + db.Rights{Standby: true}.Writes().Error() + "\nstorage: ok\npushes: ok\nstatistics: ok\n"},
		"rights that pulls need": {rights: lacks("tags", "SELECT"), text: fmt.Sprintf("database: %[1]v\nstorage: ok\npushes: %[1]v\nstatistics: ok\n", lacks("tags", "SELECT").All())},
		"other rights": {rights: lacks("tags", "INSERT"), ready: true,
			text: fmt.Sprintf("database: ok\nstorage: ok\npushes: %v\nstatistics: ok\n", lacks("tags", "INSERT").All())},
		"statistics": {statistics: fails, ready: true, text: "database: ok\nstorage: ok\npushes: ok\nstatistics: it fails\n"},
	} {
		check := func(err error) func(context.Context) error { return func(context.Context) error { return err } }
		c.rights.Schema = "public"
		rights := func(context.Context) (db.Rights, error) { return c.rights, c.database }
		ready, _, text := runChecks(t.Context(), []readinessCheck{
			databaseCheck(rights, true), storageCheck(check(c.store)),
			pushesCheck(check(c.store), func() error { return c.full }, lacking(rights)),
			{name: "statistics", run: check(c.statistics), spare: true},
		})
		if ready != c.ready || string(text) != c.text {
			t.Errorf("%s: ready %v, %q, want %v, %q", name, ready, text, c.ready, c.text)
		}
	}
}
