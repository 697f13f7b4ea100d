package identity

import (
	"encoding/json"
	"net/http"
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

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(v); err != nil {
		panic(err)
	}
}
