package loosefk

import (
	"testing"
	"time"
)

// While no deleted record is pending, Run must make a complete run only in one of ten
// intervals, and in the others only look for a pending record. In the interval after a
// record was written, or after a run has left one unfinished, Run must make a run.
func TestTurnsWithoutRecordsAreLooks(t *testing.T) {
	t.Parallel()
	pool := newPool(t, oneChild)
	w := newWorker(t, Options{Definitions: parse(t, oneDefinition), MaxDeletes: 2, DeleteLimit: 2, RescheduleAfter: time.Hour}, install(t, pool, "projects"))
	db, r := &w.opt.Databases[0], new(rest)
	turns := func(n int) (runs, deleted int) {
		for range n {
			result, ran, err := w.turnOf(t.Context(), db, r)
			must(t, err)
			if ran {
				runs++
			}
			deleted += result.Deletes
		}
		return runs, deleted
	}
	if runs, _ := turns(1); runs != 1 {
		t.Errorf("%d runs in the first turn", runs)
	}
	if runs, _ := turns(restTurns - 1); runs != 0 {
		t.Errorf("%d runs in the turns after that, though nothing was pending", runs)
	}
	if runs, _ := turns(2 * restTurns); runs != 2 {
		t.Errorf("%d runs in %d turns, though nothing was pending", runs, 2*restTurns)
	}
	family(t, pool, 1, 3)
	exec(t, pool, "DELETE FROM projects")
	if runs, deleted := turns(1); runs != 1 || deleted != 2 {
		t.Errorf("a record came: %d runs, which deleted %d children", runs, deleted)
	}
	if runs, deleted := turns(1); runs != 1 || deleted != 1 {
		t.Errorf("a run was cut off by its limit: %d runs after it, which deleted %d children", runs, deleted)
	}
	// After the last record, one more run finds that nothing is pending.
	if runs, _ := turns(restTurns); runs != 1 {
		t.Errorf("%d runs in %d turns after the last record", runs, restTurns)
	}
	exec(t, pool, "ALTER TABLE loose_foreign_keys_deleted_records RENAME TO hidden")
	for range 2 {
		if _, ran, err := w.turnOf(t.Context(), db, r); err == nil || !ran {
			t.Errorf("the table of records is gone: ran %v, error %v", ran, err)
		}
	}
}
