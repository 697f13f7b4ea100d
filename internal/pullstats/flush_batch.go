package pullstats

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"
)

// flushing is the state of a run: it fills a batch with claims, page by page, and applies
// it when it is full.
type flushing struct {
	w      *FlushWorker
	batch  int64 // 0: none is open
	list   []claimed
	has    map[string]bool // the keys of list
	begun  time.Time
	failed error // why the batch takes no more claims
	left   error // why keys were left for the next run
}

// errUnknownBatch says that the database doesn't know the batch that has a claim.
var errUnknownBatch = errors.New("a batch that the database doesn't know has claimed pulls in Redis, so that it can't be told whether they were counted: " +
	"the statistics' database isn't the one that Redis was flushed to, or was emptied. Delete the claimed keys to give their pulls up")

// page claims a page of keys, and applies the batch when it is full. After an error it does
// nothing more, even for other nodes of a cluster: a batch with an unanswered claim must
// not be applied.
func (f *flushing) page(ctx context.Context, keys []string) error {
	if f.failed == nil {
		f.failed = f.take(ctx, keys)
	}
	return f.failed
}

// take does the work of page, as long as nothing has failed.
func (f *flushing) take(ctx context.Context, keys []string) error {
	slices.Sort(keys) // a scan may return a key twice
	for part := range slices.Chunk(slices.Compact(keys), f.w.opt.Batch) {
		if len(f.list) > f.w.opt.Batch/2 { // a page has about as many keys as a batch
			if err := f.finish(ctx); err != nil {
				return err
			}
		}
		if f.batch == 0 {
			if err := f.open(ctx); err != nil {
				return err
			}
		}
		if err := f.claim(ctx, part); err != nil {
			return err
		}
		if len(f.list) >= f.w.opt.Batch || len(f.list) > 0 && time.Since(f.begun) > batchLease/4 {
			if err := f.finish(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// open makes a batch, and stores its number in Redis before anything is claimed. It fails
// if Redis has lost pulls since the run began: storing a new number in an emptied Redis
// would hide the loss.
func (f *flushing) open(ctx context.Context) error {
	n, kept, err := f.w.batches.open(ctx)
	if err != nil {
		return err
	}
	f.batch, f.list, f.has, f.begun = n, nil, map[string]bool{}, time.Now()
	f.w.crash("opened")
	return f.w.opt.Redis.raiseEpoch(ctx, n, kept)
}

// claim claims keys for the batch. Keys that ended batches have claimed are settled and
// claimed again.
func (f *flushing) claim(ctx context.Context, keys []string) error {
	others, err := f.claimOnce(ctx, keys)
	if err != nil || len(others) == 0 {
		return err
	}
	free, err := f.w.settleOthers(ctx, others)
	if err != nil || len(free) == 0 {
		return err
	}
	_, err = f.claimOnce(ctx, free)
	return err
}

// claimOnce sends claims, and returns the keys that other batches have claimed. If a claim
// stays unanswered it returns an error and the batch must end, since it isn't known what
// was claimed. Claims that Redis refuses are left for the next run.
func (f *flushing) claimOnce(ctx context.Context, keys []string) (others map[string]int64, err error) {
	calls := make([]*call, len(keys))
	for i, key := range keys {
		calls[i] = &call{script: claimScript, key: key, args: []any{f.batch}}
	}
	f.w.opt.Redis.run(ctx, calls)
	f.w.crash("claimed")
	others = map[string]int64{}
	var lost error
	for _, c := range calls {
		switch got, err := c.outcome(); {
		case got == refused && unfit(err):
			f.w.invalid(ctx, c.key, err)
		case got == refused:
			f.left = fmt.Errorf("claiming pulls in Redis: %w", err)
		case got == unanswered:
			lost = err
		default:
			f.answer(ctx, c, others)
		}
	}
	if lost != nil {
		return nil, fmt.Errorf("claiming pulls in Redis: %w", lost)
	}
	return others, nil
}

// answer processes the answer to a claim.
func (f *flushing) answer(ctx context.Context, c *call, others map[string]int64) {
	fields, ok := c.cmd.Val().([]any)
	if !ok || len(fields) == 0 {
		return // there was nothing to claim
	}
	owner, _ := fields[0].(string)
	if n, err := strconv.ParseInt(owner, 10, 64); err == nil && n != f.batch {
		others[c.key] = n
		return
	}
	got, err := parseClaim(c.key, fields)
	if err != nil {
		f.w.invalid(ctx, c.key, err)
		return
	}
	if !f.has[c.key] { // a scan may return a key again
		f.has[c.key] = true
		f.list = append(f.list, got)
	}
}

// invalid reports a key that has a counter's name but isn't a counter of pulls.
func (w *FlushWorker) invalid(ctx context.Context, key string, err error) {
	w.opt.Metrics.flushedKeys(keyInvalid, 1)
	w.opt.Logger.WarnContext(ctx, "a key in Redis has a name of a counter of pulls and is none", "key", key, "error", err)
}

// finish applies the batch, and settles its claims according to the batch's state.
func (f *flushing) finish(ctx context.Context) error {
	w := f.w
	state, gone, err := w.apply(ctx, f.batch, f.list)
	if err != nil {
		return err // close abandons the batch
	}
	list := f.list
	n := f.batch
	f.batch, f.list = 0, nil
	if err := w.settle(ctx, n, list, state); err != nil {
		return err
	}
	w.opt.Metrics.flushed(time.Since(f.begun))
	if state == batchApplied {
		w.opt.Metrics.flushedKeys(keyFlushed, len(list)-gone)
		w.opt.Metrics.flushedKeys(keyGone, gone)
		return nil
	}
	w.opt.Metrics.flushedKeys(keyKept, len(list))
	return fmt.Errorf("flush %d took longer than its %s, and was given up by another worker", n, batchLease)
}

// apply does the transaction of a batch, with retries. When an attempt stays unanswered,
// the next one finds out whether it was committed.
func (w *FlushWorker) apply(ctx context.Context, n int64, list []claimed) (state string, gone int, err error) {
	for attempt := 1; ; attempt++ {
		start := time.Now()
		state, gone, err = w.write(ctx, n, list)
		w.opt.Metrics.upserted(time.Since(start))
		if err == nil || attempt == flushAttempts || ctx.Err() != nil {
			return state, gone, err
		}
		w.opt.Logger.WarnContext(ctx, "a flush of pulls failed", "batch", n, "attempt", attempt, "error", err)
		pause := time.NewTimer(w.opt.Backoff << (attempt - 1))
		select {
		case <-ctx.Done():
			pause.Stop()
			return "", 0, ctx.Err()
		case <-pause.C:
		}
	}
}

// close ends a run: it applies the claims, or abandons the batch when the run failed.
func (f *flushing) close(ctx context.Context, cause error) error {
	if cause == nil && len(f.list) > 0 {
		cause = f.finish(ctx)
	}
	if f.batch == 0 {
		return cmp.Or(cause, f.left)
	}
	// A batch that can't be abandoned now is abandoned when its lease has ended.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	state, err := f.w.batches.abandon(ctx, f.batch)
	if err == nil {
		err = f.w.settle(ctx, f.batch, f.list, state)
		f.w.opt.Metrics.flushedKeys(keyKept, len(f.list))
	}
	return errors.Join(cmp.Or(cause, f.left), err)
}

// settle ends the claims of a batch that was applied or abandoned.
func (w *FlushWorker) settle(ctx context.Context, n int64, list []claimed, state string) error {
	if state != batchApplied && state != batchAbandoned {
		return fmt.Errorf("flush %d: %w", n, errUnknownBatch)
	}
	claims := make(map[string]int64, len(list))
	for _, c := range list {
		claims[c.key] = n
	}
	return w.settleAll(ctx, claims, map[int64]string{n: state})
}

// settleOthers ends the claims of other batches that were applied or abandoned, and returns
// their keys.
func (w *FlushWorker) settleOthers(ctx context.Context, others map[string]int64) (free []string, err error) {
	ids := make([]int64, 0, len(others))
	for _, n := range others {
		ids = append(ids, n)
	}
	states, err := w.batches.states(ctx, sorted(ids))
	if err != nil {
		return nil, err
	}
	over := map[string]int64{}
	for key, n := range others {
		switch states[n] {
		case batchUnknown:
			return nil, fmt.Errorf("key %s, flush %d: %w", key, n, errUnknownBatch)
		case batchApplied, batchAbandoned:
			over[key] = n
			free = append(free, key)
		}
	}
	slices.Sort(free)
	return free, w.settleAll(ctx, over, states)
}

// settleAll ends claims according to the states of their batches.
func (w *FlushWorker) settleAll(ctx context.Context, claims map[string]int64, states map[int64]string) error {
	calls := make([]*call, 0, len(claims))
	for key, n := range claims {
		calls = append(calls, &call{script: settleScript, key: key, args: []any{n, states[n], int(settledFor.Seconds())}})
	}
	if len(calls) == 0 {
		return nil
	}
	w.opt.Redis.run(ctx, calls)
	w.crash("settled")
	for _, c := range calls {
		// The next run settles a claim that this one couldn't.
		if got, err := c.outcome(); got != answered {
			return fmt.Errorf("settling pulls in Redis: %w", err)
		}
	}
	return nil
}
