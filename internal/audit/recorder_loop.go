package audit

import (
	"context"
	"time"

	"github.com/purser-registry/purser/internal/worker"
)

// runBatch writes a batch; the worker loop calls it. If the loop was just woken by the
// first entry after a pause, runBatch returns without writing, and the loop sleeps for
// Every so that more entries can come. But it does write if there are enough entries for a
// full batch, or if the buffer is full.
func (r *Recorder) runBatch(ctx context.Context) (more bool, err error) {
	r.mu.Lock()
	wait := r.began && len(r.queue) < min(r.opt.Batch, r.opt.Buffer)
	r.began = false
	r.mu.Unlock()
	if wait {
		return false, nil
	}
	return r.flush(ctx)
}

// sleepTime returns how long the loop sleeps: Every if the buffer has entries, otherwise
// worker.MaxIdle, from which the next entry wakes it.
func (r *Recorder) sleepTime(context.Context) (time.Duration, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.resting = len(r.queue) == 0
	if r.resting {
		return worker.MaxIdle, nil
	}
	return r.opt.Every, nil
}
