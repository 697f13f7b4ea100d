package db_test

import (
	"os"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/db/dbtest"
)

// TestLongAnnotationsAreDropped runs a migration on a database with short and long annotations
// of manifests. The migration must keep annotations of up to 64 KiB and clear longer ones.
func TestLongAnnotationsAreDropped(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	ctx := t.Context()
	const insert = `INSERT INTO manifests (top_level_namespace_id, repository_id, digest, media_type, subject_digest, annotations, payload, total_size)
		VALUES (1, 1, $1, 'x', 'subject', $2, '', 0)`
	for name, n := range map[string]int{"short": 60_000, "long": 70_000} {
		if _, err := d.Pool.Exec(ctx, insert, []byte(name), `{"a":"`+strings.Repeat("x", n)+`"}`); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile("migrations/00013_referrer_annotations.sql")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Pool.Exec(ctx, string(text)); err != nil {
		t.Fatal(err)
	}
	if n := number(t, d, "SELECT count(*) FROM manifests WHERE annotations IS NOT NULL"); n != 1 {
		t.Errorf("%d of 2 manifests have annotations, want 1", n)
	}
	if n := number(t, d, "SELECT octet_length(annotations::text) FROM manifests WHERE annotations IS NOT NULL"); n != 60_008 {
		t.Errorf("the annotations that are kept have %d bytes", n)
	}
}
