package snapshot_test

import (
	"testing"

	"github.com/purser-registry/purser/internal/db/dbtest"
)

func TestMain(m *testing.M) { dbtest.Main(m) }
