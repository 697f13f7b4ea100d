package audit

import (
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/worker"
)

// While the buffer is empty, the recorder's loop must sleep until an entry comes. The first
// entry must then wait for Every (1 s here), so that others can join its batch. Two entries
// fill a batch in this test, so the loop must write them at once.
func TestRecorderRests(t *testing.T) {
	t.Parallel()
	r := NewRecorder(RecorderOptions{DB: dbtest.New(t), Log: quiet, Every: time.Second, Batch: 2})
	rests := func(want time.Duration) {
		t.Helper()
		if got, err := r.sleepTime(t.Context()); err != nil || got != want {
			t.Errorf("the loop sleeps for %s (%v), want %s", got, err, want)
		}
	}
	waiting := func(want int) {
		t.Helper()
		if _, err := r.runBatch(t.Context()); err != nil || r.Pending() != want {
			t.Errorf("%d entries wait after a batch (%v), want %d", r.Pending(), err, want)
		}
	}
	record := func(n int) {
		t.Helper()
		if !r.Record(t.Context(), pull(n)) {
			t.Errorf("entry %d wasn't taken", n)
		}
	}
	waiting(0)
	rests(worker.MaxIdle)
	record(1)
	waiting(1)
	rests(time.Second)
	waiting(0)
	rests(worker.MaxIdle)
	record(2)
	record(3)
	waiting(0)
}

// An entry that comes while the loop sleeps must wake it.
func TestRecorderWakes(t *testing.T) {
	t.Parallel()
	r := NewRecorder(RecorderOptions{DB: dbtest.New(t), Log: quiet, Every: time.Millisecond})
	start(t, r.Run)
	for n := range 20 {
		resting := func() bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.resting
		}
		eventually(t, "the loop rests", resting)
		r.Record(t.Context(), pull(n))
		eventually(t, "the entry is written", func() bool { return r.Pending() == 0 })
	}
}
