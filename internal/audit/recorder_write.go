package audit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
)

// flush writes the oldest entries of the buffer as one batch. `more` says that the buffer
// still has enough entries for another full batch.
func (r *Recorder) flush(ctx context.Context) (more bool, err error) {
	select {
	case r.writing <- struct{}{}:
		defer func() { <-r.writing }()
	case <-ctx.Done():
		return false, ctx.Err()
	}
	defer func() { r.ended(err) }()
	batch, err := r.next(ctx)
	if err != nil || len(batch) == 0 {
		return false, err
	}
	unfit, err := r.write(ctx, batch)
	if err != nil {
		return false, err
	}
	if unfit > 0 {
		r.log.WarnContext(ctx, "pulls could not be written to the audit log", "pulls", unfit)
	}
	n, entries := 0, len(batch)-countHeads(batch)
	for i := range batch {
		if batch[i].Kind != headOfTag {
			n += batch[i].pulls()
		}
	}
	r.opt.Metrics.drop(droppedUnfit, unfit)
	r.opt.Metrics.wrote(n-unfit, entries)
	return r.done(len(batch), unfit), nil
}

// ended records that an attempt to write a batch has ended, and whether it failed. After a
// failure it wakes the callers of Wait. They offer their entries once more, and if the buffer
// is still full, their next call of Wait returns false at once.
func (r *Recorder) ended(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.since, r.failing = time.Time{}, err != nil
	if r.failing {
		r.leave()
	}
}

// leave wakes the callers of Wait. It is called when entries have left the buffer, or when
// writing a batch has failed.
func (r *Recorder) leave() {
	close(r.room)
	r.room = make(chan struct{})
}

// next returns the oldest entries of the buffer as the next batch, and gives an id from the
// database to each entry that has none. From then on these entries accept no further
// requests. They stay in the buffer until done removes them.
func (r *Recorder) next(ctx context.Context) ([]Entry, error) {
	r.mu.Lock()
	n := min(len(r.queue), r.opt.Batch)
	batch := make([]Entry, n)
	known := 0 // entries that have their ids from an earlier attempt
	for i, w := range r.queue[:n] {
		if w.ID != 0 {
			known++
		}
		if w.key != (joinKey{}) && r.open[w.key] == w {
			delete(r.open, w.key)
		}
		w.freeze()
		batch[i] = w.Entry
	}
	if n > 0 {
		r.since = time.Now()
	}
	r.mu.Unlock()
	if known == n {
		return batch, nil
	}
	rows, err := r.opt.DB.Pool.Query(ctx, "SELECT nextval('auditlog_id_seq') FROM generate_series(1, $1::int)", n-known)
	if err != nil {
		return nil, fmt.Errorf("writing pulls to the audit log: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return nil, fmt.Errorf("writing pulls to the audit log: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, id := range ids {
		batch[known+i].ID = id
		r.queue[known+i].ID = id
	}
	return batch, nil
}

// done removes the first `n` entries, which were written as a batch, from the buffer.
// `unfit` is how many of their pulls PostgreSQL refused; done counts these as dropped. It
// returns whether the buffer still has enough entries for another full batch.
func (r *Recorder) done(n, unfit int) (more bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.queue[:n] {
		r.places.Remove(w.Namespace)
		if w.Kind == headOfTag {
			r.heads.Remove(w.Namespace)
		}
	}
	clear(r.queue[:n]) // so that their texts can be freed
	r.queue = r.queue[n:]
	r.dropped += uint64(unfit)
	r.unfit += uint64(unfit)
	r.leave()
	return len(r.queue) >= r.opt.Batch
}

// write inserts `entries`, and returns how many pulls it left out because PostgreSQL will
// never accept their entries. It finds such an entry by halving the batch again and again,
// so that all other entries are written.
func (r *Recorder) write(ctx context.Context, entries []Entry) (unfit int, err error) {
	err = r.insert(ctx, entries)
	if !refused(err) {
		return 0, err
	}
	if len(entries) == 1 {
		return entries[0].pulls(), nil
	}
	half := len(entries) / 2
	a, err := r.write(ctx, entries[:half])
	if err != nil {
		return 0, err
	}
	b, err := r.write(ctx, entries[half:])
	return a + b, err
}

// refused says whether `err` is caused by the data of an entry, so that every further
// attempt would fail too. Such errors are errUnfit and PostgreSQL's error classes 22 (data
// exception) and 54 (program limit exceeded).
func refused(err error) bool {
	if errors.Is(err, errUnfit) {
		return true
	}
	code := db.Code(err)
	return len(code) == 5 && (code[:2] == "22" || code[:2] == "54")
}

func (r *Recorder) insert(ctx context.Context, entries []Entry) error {
	pulls, heads := splitHeads(entries)
	if r.opt.Alive == nil && len(heads) == 0 {
		return db.Retry(ctx, func() error { return Append(ctx, r.opt.DB.Pool, pulls...) })
	}
	return r.opt.DB.Tx(ctx, func(tx pgx.Tx) error {
		if r.opt.Alive == nil {
			return errors.Join(Append(ctx, tx, pulls...), appendHeads(ctx, tx, heads))
		}
		alive, err := r.opt.Alive(ctx, tx, repositories(entries))
		if err != nil {
			return fmt.Errorf("looking for the repositories of pulls: %w", err)
		}
		there := map[int64]bool{}
		for _, id := range alive {
			there[id] = true
		}
		mine := slices.Clone(pulls)
		for i := range mine {
			if !there[mine[i].RepositoryID] {
				mine[i].RepositoryID = 0
			}
		}
		if err := appendHeads(ctx, tx, heads); err != nil {
			return err
		}
		return Append(ctx, tx, mine...)
	})
}

// repositories returns the ids of the entries' repositories, in ascending order.
func repositories(entries []Entry) []int64 {
	var ids []int64
	for _, e := range entries {
		if e.RepositoryID != 0 {
			ids = append(ids, e.RepositoryID)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}
