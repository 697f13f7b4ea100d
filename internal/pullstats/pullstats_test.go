package pullstats_test

import (
	"maps"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/pullstats"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

func TestReader(t *testing.T) {
	t.Parallel()
	if _, err := pullstats.NewReader(pullstats.Options{}); err == nil {
		t.Error("a reader without a database")
	}
	d := dbtest.Open(t, dbtest.DSN(t))
	r, err := pullstats.NewReader(pullstats.Options{DB: d})
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 3, 1, 7, 0, 0, 0, time.UTC)
	digest := oci.Compute(oci.SHA256, []byte("x"))
	for sql, args := range map[string][]any{
		`INSERT INTO tagpullstatistics (repository_id, tag_name, tag_pull_count, last_tag_pull_date)
			VALUES (1, 'a', 3, $1), (1, 'b', 0, NULL), (2, 'c', 5, $1)`: {at},
		`INSERT INTO manifestpullstatistics (repository_id, manifest_digest, total_pull_count, last_pull_date)
			VALUES (1, $1, 7, $2)`: {digest.String(), at},
	} {
		if _, err := d.Pool.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	got, err := r.Tags(t.Context(), 1, []string{"a", "b", "c", "d"})
	want := map[string]pullstats.Pulls{"a": {Count: 3, Last: at}, "b": {}}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("tags: %v %v, want %v", got, err, want)
	}
	if p, err := r.Manifest(t.Context(), 1, digest); err != nil || p != (pullstats.Pulls{Count: 7, Last: at}) {
		t.Errorf("a manifest: %v %v", p, err)
	}
	if p, err := r.Manifest(t.Context(), 2, digest); err != nil || p != (pullstats.Pulls{}) {
		t.Errorf("one without: %v %v", p, err)
	}
	d.Close()
	if _, err := r.Tags(t.Context(), 1, []string{"a"}); err == nil {
		t.Error("without a database there is no error")
	}
}
