package db_test

import (
	"os"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/db/dbtest"
)

// TestDelaysOfEarlierVersions runs the migration of review delays on a database of an earlier
// version. The migration must keep the delays, with one exception: two events had a default
// delay of a minute, and if they still have this delay, it must become the new default of a
// day.
func TestDelaysOfEarlierVersions(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	sql, err := os.ReadFile("migrations/00018_review_delays.sql")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Pool.Exec(t.Context(), `
		ALTER TABLE gc_review_after_defaults DROP COLUMN configured;
		INSERT INTO gc_review_after_defaults (event, value) VALUES
			('manifest_list_delete', '1 minute'), ('subject_delete', '5 minutes'), ('tag_delete', '1 minute'), ('blob_upload', '24 hours')`); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Pool.Exec(t.Context(), string(sql)); err != nil {
		t.Fatal(err)
	}
	for event, want := range map[string]struct {
		value time.Duration
		known int
	}{
		"manifest_list_delete": {24 * time.Hour, 1}, "subject_delete": {5 * time.Minute, 0},
		"tag_delete": {time.Minute, 0}, "blob_upload": {24 * time.Hour, 1},
	} {
		var value time.Duration
		var known int
		if err := d.Pool.QueryRow(t.Context(), "SELECT value, num_nonnulls(configured) FROM gc_review_after_defaults WHERE event = $1", event).
			Scan(&value, &known); err != nil || value != want.value || known != want.known {
			t.Errorf("%s: %v, known %d (%v), want %v, %d", event, value, known, err, want.value, want.known)
		}
	}
}
