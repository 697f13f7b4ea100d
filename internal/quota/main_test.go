package quota_test

import (
	"testing"

	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/db/dbtest"
)

// bundle is a catalog on a database that belongs to one test, with the quotas of its namespaces.
type bundle struct{ catalogtest.Bundle }

func setup(t *testing.T) bundle {
	t.Helper()
	return bundle{catalogtest.Setup(t)}
}

// replica opens another catalog on the database dsn, as another process of the registry would.
func replica(t *testing.T, dsn string) bundle {
	t.Helper()
	return bundle{catalogtest.Replica(t, dsn)}
}

func TestMain(m *testing.M) { dbtest.Main(m) }
