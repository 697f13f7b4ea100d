package identity

import (
	"testing"

	"go.uber.org/goleak"
)

// TestMain runs the tests, and then fails if a goroutine is left.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
