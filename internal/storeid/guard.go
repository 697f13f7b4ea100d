package storeid

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/purser-registry/purser/internal/blob"
)

const (
	lookEvery      = 5 * time.Second // unless a directory is in use
	lookEveryLocal = time.Second
	localRest      = 5 * time.Second // after the last question
	// lookWait is how long Wrong waits for a directory that hangs.
	lookWait = time.Second
)

// Wrong says whether the last look found that the store isn't the database's. In a
// directory that look is a second old at most, unless it hangs; elsewhere Run's is
// taken, and asking costs nothing. A store that can't be reached isn't a wrong one.
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

// lookShortly looks at the store, or shares the look that is under way, and doesn't wait
// long for one that hangs.
func (s *Store) lookShortly() {
	ctx, cancel := context.WithTimeout(context.Background(), lookWait)
	defer cancel()
	since, over := time.Now().Add(-lookEveryLocal), make(chan struct{})
	go func() { // the look itself doesn't end with ctx
		defer close(over)
		s.verify(ctx, since) //nolint:errcheck // lookNow logs it
	}()
	select {
	case <-over:
	case <-ctx.Done():
	}
}

// now is the time since the store was made.
func (s *Store) now() time.Duration { return time.Since(s.made) }

// Run looks at the store all the time until ctx ends, so that Wrong is up to date
// and a store that goes away, or comes back, is logged.
func (s *Store) Run(ctx context.Context) error {
	for pause(ctx, s.lookAfter()) == nil {
		s.verify(ctx, time.Now()) //nolint:errcheck // lookNow logs it
	}
	return nil
}

// lookAfter is how long Run waits before its next look: less at a directory that Wrong
// was asked about not long ago. While nobody asks, the first question has its own look.
func (s *Store) lookAfter() time.Duration {
	if used := s.used.Load(); s.opt.Local && used != 0 && s.now()-time.Duration(used) < localRest {
		return lookEveryLocal
	}
	return lookEvery
}

// Collector tells metrics whether the store is the database's.
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

// verify returns nil if a look that began at since or later has found the store's
// identity. Callers at the same time share a look.
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

// lookNow looks and unlocks s.mu, which its caller has locked.
func (s *Store) lookNow(ctx context.Context) error {
	done := make(chan struct{})
	s.running = done
	id := s.id
	s.mu.Unlock()
	// Others wait for it too, so it doesn't end with its caller.
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

// compare returns the identity of both, or id and an error.
func (s *Store) compare(ctx context.Context, id string) (string, error) {
	there, err := s.Store.Identity(ctx)
	if err != nil || there == id && id != "" {
		return id, err
	}
	// The database may have been given another identity together with the store.
	known, err := read(ctx, s.opt.DB, s.opt.Lease)
	if err != nil {
		known = Known{ID: id}
	}
	if err == nil && known.Confirmed && known.ID == there {
		return there, nil
	}
	return id, s.mismatch(known, there)
}

// tell notes whether the store is wrong, and logs when that changes.
func (s *Store) tell(err error) {
	wrong := errors.Is(err, blob.ErrWrongStore)
	switch was := s.wrong.Swap(wrong); {
	case wrong && !was:
		s.log.Error("the blob store isn't the one that belongs to the database: nothing is written to it until it is", "error", err)
	case was && !wrong && err == nil:
		s.log.Info("the blob store is the database's again", "place", s.opt.Place)
	case was && !wrong: // it can't be reached: what was wrong isn't known to be right
		s.wrong.Store(true)
	}
}

// before allows a write.
func (s *Store) before(ctx context.Context) error { return s.verify(ctx, time.Now().Add(-s.fresh)) }

// after believes a store that says that it wrote or deleted something.
func (s *Store) after(ctx context.Context, err error) error {
	if err != nil {
		return err
	}
	return s.before(ctx)
}

// missing believes a store that says that something isn't there.
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
	if err := s.Store.Check(ctx); err != nil {
		return err
	}
	return s.verify(ctx, time.Now())
}
