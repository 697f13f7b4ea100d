package judge_test

import (
	"os"
	"testing"

	"github.com/purser-registry/purser/internal/testscale"
)

func TestMain(m *testing.M) {
	testscale.Properties()
	os.Exit(m.Run())
}
