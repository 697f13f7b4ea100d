package ui_test

import (
	"testing"

	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/testscale"
)

func TestMain(m *testing.M) {
	testscale.Properties()
	dbtest.Main(m)
}
