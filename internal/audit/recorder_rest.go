package audit

import (
	"context"
	"time"

	"github.com/purser-registry/purser/internal/worker"
)

// round is a batch of the loop. The first entry after a rest, which wakes the loop, waits
// for others as any other does, unless they fill a batch, or the buffer, already.
func (r *Recorder) round(ctx context.Context) (more bool, err error) {
	r.mu.Lock()
	wait := r.began && len(r.queue) < min(r.opt.Batch, r.opt.Buffer)
	r.began = false
	r.mu.Unlock()
	if wait {
		return false, nil
	}
	return r.flush(ctx)
}

// rest is how long the loop sleeps: while nothing waits to be written, until something
// comes.
func (r *Recorder) rest(context.Context) (time.Duration, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.resting = len(r.queue) == 0
	if r.resting {
		return worker.MaxIdle, nil
	}
	return r.opt.Every, nil
}
