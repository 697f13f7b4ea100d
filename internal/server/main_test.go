package server_test

import (
	"testing"

	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/server/servertest"
	"github.com/purser-registry/purser/internal/testscale"
)

func TestMain(m *testing.M) {
	testscale.Properties()
	dbtest.Main(m)
}

// registry is a complete registry for a test.
type registry struct{ *servertest.Registry }

type (
	answer = servertest.Answer
	object = servertest.Object
)

var (
	digest     = servertest.Digest
	eventually = servertest.Eventually
	image      = servertest.Image
	pattern    = servertest.Pattern
)

// setup starts a registry with its own database and store, and waits until the registry uses
// its caches.
func setup(t testing.TB, change ...func(*servertest.Options)) *registry {
	t.Helper()
	return &registry{servertest.Setup(t, change...)}
}

// replica starts a registry on the database `dsn` and the store in `dir`, which another
// registry may use too.
func replica(t testing.TB, dsn, dir string, change ...func(*servertest.Options)) *registry {
	t.Helper()
	return &registry{servertest.NewReplica(t, dsn, dir, change...)}
}
