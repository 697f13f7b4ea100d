package browse_test

import (
	"testing"

	"github.com/purser-registry/purser/internal/catalog/browse"
	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/db/dbtest"
)

// bundle is a catalog with its browser on a database that belongs to one test.
type bundle struct {
	catalogtest.Bundle
	*browse.Browser
}

func setup(t *testing.T) bundle {
	t.Helper()
	return replica(t, dbtest.DSN(t))
}

// replica opens another catalog on the database dsn, as another process of the registry would.
func replica(t *testing.T, dsn string) bundle {
	t.Helper()
	b := catalogtest.Replica(t, dsn)
	return bundle{b, browse.New(b.Catalog)}
}

func second[T any](_ T, err error) error { return err }

func TestMain(m *testing.M) { dbtest.Main(m) }
