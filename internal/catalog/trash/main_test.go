package trash_test

import (
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/db/dbtest"
)

// bundle is a catalog on a database that belongs to one test, with a garbage collector and the trash.
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

// withTrash opens a catalog with a trash on the database dsn.
func withTrash(t *testing.T, dsn string) bundle {
	t.Helper()
	return bundle{catalogtest.WithTrash(t, dsn, time.Hour)}
}

func TestMain(m *testing.M) { dbtest.Main(m) }
