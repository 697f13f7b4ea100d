package management_test

import (
	"testing"

	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/server/servertest"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

// registry is a complete registry for a test.
type registry struct{ *servertest.Registry }

type (
	answer = servertest.Answer
	object = servertest.Object
)

var (
	digest     = servertest.Digest
	descriptor = servertest.Descriptor
	encode     = servertest.Encode
	eventually = servertest.Eventually
	image      = servertest.Image
	index      = servertest.Index
	length     = servertest.Length
	background = servertest.Background
)

// setup starts a registry and waits until its caches are in use.
func setup(t testing.TB, change ...func(*servertest.Options)) *registry {
	t.Helper()
	return &registry{servertest.Setup(t, change...)}
}

// replica starts another process on the same database and store.
func replica(t testing.TB, dsn, dir string, change ...func(*servertest.Options)) *registry {
	t.Helper()
	return &registry{servertest.NewReplica(t, dsn, dir, change...)}
}
