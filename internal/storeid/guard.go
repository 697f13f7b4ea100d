package storeid

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/worker"
)

const (
	lookEvery      = 5 * time.Second // for stores other than a directory in use
	lookEveryLocal = time.Second
	localRest      = 5 * time.Second // after Wrong was last called
	// lookWait is how long Wrong waits for a check if the directory's file system doesn't
	// answer.
	lookWait = time.Second
)

// Wrong returns whether the last check found that this store isn't the one that belongs to the
// database. For a directory, Wrong makes a check if the last check is more than a second old,
// and waits for it at most lookWait. For other stores it returns the result of the last check,
// which Run or an operation has made, and costs nothing. A check that can't reach the store
// doesn't change the result.
func (s *Store) Wrong() bool {
	if !s.opt.Local {
		return s.wrong.Load()
	}
	now := s.now()
	if now-time.Duration(s.used.Load()) > lookEveryLocal/10 {
		s.used.Store(int64(now))
	}
	if looked := s.looked.Load(); looked != 0 && now-time.Duration(looked) <= lookEveryLocal {
		return s.wrong.Load()
	}
	if looking := s.looking.Load(); looking == 0 || now-time.Duration(looking) < lookWait {
		s.lookShortly()
	}
	return s.wrong.Load()
}

// lookShortly checks the store, or waits for a check that another goroutine has begun. It
// returns after lookWait even if the check isn't over.
func (s *Store) lookShortly() {
	ctx, cancel := context.WithTimeout(context.Background(), lookWait)
	defer cancel()
	since, over := time.Now().Add(-lookEveryLocal), make(chan struct{})
	go func() { // the check itself goes on when ctx ends
		defer close(over)
		s.verify(ctx, since) //nolint:errcheck // lookNow logs it
	}()
	select {
	case <-over:
	case <-ctx.Done():
	}
}

// now returns the time since the Store was created.
func (s *Store) now() time.Duration { return time.Since(s.made) }

// Run checks the store regularly until ctx ends. So Wrong returns a recent result, and the
// program's log says when the wrong store appears and when the right store is back.
func (s *Store) Run(ctx context.Context) error {
	for worker.Sleep(ctx, s.lookAfter()) == nil {
		s.verify(ctx, time.Now()) //nolint:errcheck // lookNow logs it
	}
	return nil
}

// lookAfter returns the pause before Run's next check: one second for a directory if Wrong
// was called recently, else five seconds. If Wrong is called for a directory during this
// longer pause, Wrong makes a check itself.
func (s *Store) lookAfter() time.Duration {
	if used := s.used.Load(); s.opt.Local && used != 0 && s.now()-time.Duration(used) < localRest {
		return lookEveryLocal
	}
	return lookEvery
}

// Collector returns a gauge that says whether the store is the wrong one.
func (s *Store) Collector() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "purser_storage_wrong_store",
		Help: "1 while the blob store isn't the one that belongs to the database, so that nothing is written to it; else 0.",
	}, func() float64 {
		if s.wrong.Load() {
			return 1
		}
		return 0
	})
}

// verify returns the result of a check of the store that began at the time `since` or later:
// nil if the check found the database's identity in the store, else the check's error. If
// there was no such check, verify makes one, or waits for a check that another goroutine is
// making.
func (s *Store) verify(ctx context.Context, since time.Time) error {
	for {
		s.mu.Lock()
		if last := s.last; !last.began.Before(since) && !last.began.IsZero() {
			s.mu.Unlock()
			return last.err
		}
		if s.running == nil {
			return s.lookNow(ctx)
		}
		running := s.running
		s.mu.Unlock()
		select {
		case <-running:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// lookNow checks the store's identity. Its caller has locked s.mu; lookNow unlocks it.
func (s *Store) lookNow(ctx context.Context) error {
	done := make(chan struct{})
	s.running = done
	id := s.id
	s.mu.Unlock()
	// Other goroutines may wait for this check too, so it goes on if the context of this
	// caller ends.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookTimeout)
	defer cancel()
	l := look{began: time.Now()}
	began := int64(s.now())
	s.looking.Store(began)
	id, l.err = s.compare(ctx, id)
	s.tell(l.err)
	s.mu.Lock()
	s.looking.Store(0)
	s.looked.Store(began)
	s.id, s.last, s.running = id, l, nil
	s.mu.Unlock()
	close(done)
	return l.err
}

// compare reads the store's identity and compares it with `id`, the identity that this process
// knows. If they differ, an adoption may have changed both, so compare also reads the
// database's identity. It returns the identity that store and database share. If they don't
// share one, it returns `id` and an error.
func (s *Store) compare(ctx context.Context, id string) (string, error) {
	there, err := s.Store.Identity(ctx)
	if err != nil || there == id && id != "" {
		return id, err
	}
	// The store has another identity than `id`. An adoption may have given database and store
	// a new identity after this process started.
	known, err := read(ctx, s.opt.DB, s.opt.Lease)
	if err != nil {
		known = Known{ID: id}
	}
	if err == nil && known.Confirmed && known.ID == there {
		return there, nil
	}
	return id, s.mismatch(known, there)
}

// tell records in s.wrong whether err, the result of a check, says that this is the wrong
// store, and logs when that changes. If the check failed, what was found before stands.
func (s *Store) tell(err error) {
	wrong := errors.Is(err, blob.ErrWrongStore)
	if err != nil && !wrong {
		return
	}
	switch was := s.wrong.Swap(wrong); {
	case wrong && !was:
		s.log.Error("the blob store doesn't belong to the database: nothing is written to it until the right store is there", "error", err)
	case was && !wrong:
		s.log.Info("the blob store is the database's again", "place", s.opt.Place)
	}
}

// before is called before a write or delete. It returns the result of a check of the store's
// identity that is at most s.fresh old, and makes a new check if there is none.
func (s *Store) before(ctx context.Context) error { return s.verify(ctx, time.Now().Add(-s.fresh)) }

// after is called after a write, with the error of the write. It returns this error if it
// isn't nil. Otherwise it calls Store.before, which checks the store's identity or returns
// the result of the last check if that is recent enough. For a directory, where s.fresh is
// 0, before always makes a new check.
func (s *Store) after(ctx context.Context, err error) error {
	if err != nil {
		return err
	}
	return s.before(ctx)
}

// missing is called with the error of a storage operation. If the error says that an object is
// missing or lost, missing checks the store's identity, and returns the error of the check if
// the check fails. Otherwise it returns the operation's error unchanged.
func (s *Store) missing(ctx context.Context, err error) error {
	if !errors.Is(err, blob.ErrNotFound) && !errors.Is(err, blob.ErrLost) {
		return err
	}
	if wrong := s.verify(ctx, time.Now()); wrong != nil {
		return wrong
	}
	return err
}

// Resume implements blob.Store.
func (s *Store) Resume(ctx context.Context, base string, state blob.State, size int64, claim blob.Claim, numbers blob.Numbers) (blob.Writer, error) {
	if err := s.before(ctx); err != nil {
		return nil, err
	}
	w, err := s.Store.Resume(ctx, base, state, size, claim, numbers)
	if err != nil {
		return nil, s.missing(ctx, err)
	}
	return &writer{w, s}, nil
}

type writer struct {
	blob.Writer
	s *Store
}

// Save implements blob.Writer.
func (w *writer) Save(ctx context.Context) (blob.State, error) {
	state, err := w.Writer.Save(ctx)
	return state, w.s.after(ctx, w.s.missing(ctx, err))
}

// Finish implements blob.Writer.
func (w *writer) Finish(ctx context.Context) (string, error) {
	key, err := w.Writer.Finish(ctx)
	return key, w.s.after(ctx, w.s.missing(ctx, err))
}

// Open implements blob.Store.
func (s *Store) Open(ctx context.Context, key string, off, length int64) (io.ReadCloser, error) {
	r, err := s.Store.Open(ctx, key, off, length)
	return r, s.missing(ctx, err)
}

// Stat implements blob.Store.
func (s *Store) Stat(ctx context.Context, key string) (blob.Object, error) {
	o, err := s.Store.Stat(ctx, key)
	return o, s.missing(ctx, err)
}

// Delete implements blob.Store.
func (s *Store) Delete(ctx context.Context, keys []string) error {
	if err := s.before(ctx); err != nil {
		return err
	}
	if err := s.Store.Delete(ctx, keys); err != nil {
		return err
	}
	return s.verify(ctx, time.Now())
}

// DeleteUpload implements blob.Store.
func (s *Store) DeleteUpload(ctx context.Context, base, keep string) error {
	if err := s.before(ctx); err != nil {
		return err
	}
	if err := s.Store.DeleteUpload(ctx, base, keep); err != nil {
		return err
	}
	return s.verify(ctx, time.Now())
}

// Check implements blob.Store.
func (s *Store) Check(ctx context.Context) error {
	err := s.Store.Check(ctx)
	if err != nil && !errors.Is(err, blob.ErrReadOnly) {
		return err
	}
	if wrong := s.verify(ctx, time.Now()); wrong != nil {
		return wrong
	}
	return err
}
