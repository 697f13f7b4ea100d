package serve

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/purser-registry/purser/internal/blob"
)

// TestReadyTable has the rows of the table "What /readyz means" in docs/configuration.md: what
// fails, and whether the server is ready then. It is, as long as pulls can succeed.
func TestReadyTable(t *testing.T) {
	t.Parallel()
	fails := errors.New("it fails")
	for name, c := range map[string]struct {
		database, store, statistics error
		full                        error
		ready                       bool
		text                        string
	}{
		"nothing":    {ready: true, text: "database: ok\nstorage: ok\npushes: ok\nstatistics: ok\n"},
		"database":   {database: fails, text: "database: it fails\nstorage: ok\npushes: ok\nstatistics: ok\n"},
		"store":      {store: fails, text: "database: ok\nstorage: it fails\npushes: it fails\nstatistics: ok\n"},
		"wrong":      {store: blob.ErrWrongStore, text: fmt.Sprintf("database: ok\nstorage: %[1]v\npushes: %[1]v\nstatistics: ok\n", blob.ErrWrongStore)},
		"read-only":  {store: blob.ErrReadOnly, ready: true, text: fmt.Sprintf("database: ok\nstorage: ok\npushes: %v\nstatistics: ok\n", blob.ErrReadOnly)},
		"full":       {full: errors.New("the disk of the blobs is full"), ready: true, text: "database: ok\nstorage: ok\npushes: the disk of the blobs is full\nstatistics: ok\n"},
		"statistics": {statistics: fails, ready: true, text: "database: ok\nstorage: ok\npushes: ok\nstatistics: it fails\n"},
	} {
		check := func(err error) func(context.Context) error { return func(context.Context) error { return err } }
		ready, _, text := runChecks(t.Context(), []readinessCheck{
			{name: "database", run: check(c.database)}, storageCheck(check(c.store)),
			pushesCheck(check(c.store), func() error { return c.full }),
			{name: "statistics", run: check(c.statistics), spare: true},
		})
		if ready != c.ready || string(text) != c.text {
			t.Errorf("%s: ready %v, %q, want %v, %q", name, ready, text, c.ready, c.text)
		}
	}
}
