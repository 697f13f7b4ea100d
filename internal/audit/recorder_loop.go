package audit

import (
	"context"
	"time"

	"github.com/purser-registry/purser/internal/worker"
)

// runBatch runs one batch of the loop. The first entry after a pause wakes the loop; it then
// waits Every for others to join it in the batch, unless a batch or the buffer is full
// already.
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

// sleepTime returns how long the loop sleeps: Every while entries wait to be written,
// otherwise until one comes.
func (r *Recorder) sleepTime(context.Context) (time.Duration, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.resting = len(r.queue) == 0
	if r.resting {
		return worker.MaxIdle, nil
	}
	return r.opt.Every, nil
}
