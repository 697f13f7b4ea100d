package blob_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/purser-registry/purser/internal/blob"
)

func TestMeteredCounts(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	dir, err := blob.OpenDir(blob.DirOptions{Path: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	store := blob.Metered(dir, reg)
	claim := func(context.Context) (int64, error) { return 0, nil }
	numbers := func(context.Context, int) (int64, error) { return 0, nil }
	w, err := store.Resume(t.Context(), blob.NewBase(), nil, 0, claim, numbers)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if _, err := w.ReadFrom(strings.NewReader("content")); err != nil {
		t.Fatal(err)
	}
	key, err := w.Finish(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r, err := store.Open(t.Context(), key, 0, 7)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := store.Open(t.Context(), blob.NewBase()+"-0", 0, -1); !errors.Is(err, blob.ErrNotFound) {
		t.Fatalf("an object that nobody made: %v", err)
	}
	want := `
# HELP purser_storage_bytes_total Bytes written to and read from the blob store; bytes that sendfile sends count when the file is opened.
# TYPE purser_storage_bytes_total counter
purser_storage_bytes_total{operation="read"} 7
purser_storage_bytes_total{operation="written"} 7
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "purser_storage_bytes_total"); err != nil {
		t.Error(err)
	}
	// There must be four series of the metric: resume, finish, open with success, and open
	// without success.
	if n, err := testutil.GatherAndCount(reg, "purser_storage_operation_duration_seconds"); n != 4 || err != nil {
		t.Errorf("%d series, %v, want 4", n, err)
	}
}
