package blob

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestQuestion: whoever asks what doesn't answer gives up in time, and one call alone goes on. When it has
// returned, the next one asks anew.
func TestQuestion(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var q Question[int32]
		var calls atomic.Int32
		failed := errors.New("failed")
		answer := make(chan error, 1)
		ask := func(ctx context.Context) (int32, error) {
			return q.Ask(ctx, func() (int32, error) {
				n := calls.Add(1)
				return n, <-answer
			})
		}
		within := func() (context.Context, context.CancelFunc) { return context.WithTimeout(t.Context(), time.Second) }

		answer <- failed
		if n, err := ask(t.Context()); n != 1 || !errors.Is(err, failed) {
			t.Errorf("an answer: %d, %v", n, err)
		}
		var askers sync.WaitGroup
		for range 5 {
			askers.Go(func() {
				ctx, cancel := within()
				defer cancel()
				if n, err := ask(ctx); n != 0 || !errors.Is(err, ErrNoAnswer) {
					t.Errorf("no answer: %d, %v", n, err)
				}
			})
		}
		askers.Wait()
		gone, leave := context.WithCancel(t.Context())
		leave()
		if n, err := ask(gone); n != 0 || !errors.Is(err, context.Canceled) {
			t.Errorf("an asker that has gone: %d, %v", n, err)
		}
		if n := calls.Load(); n != 2 {
			t.Errorf("%d calls, want 2", n)
		}
		askers.Go(func() {
			if n, err := ask(t.Context()); n != 2 || err != nil {
				t.Errorf("the call that was in flight: %d, %v", n, err)
			}
		})
		synctest.Wait()
		answer <- nil
		askers.Wait()
		answer <- nil
		if n, err := ask(t.Context()); n != 3 || err != nil {
			t.Errorf("the next call: %d, %v", n, err)
		}
	})
}

// TestCheckOfWhatHangs: a directory whose file system hangs fails its check in time, and is usable again
// once it answers.
func TestCheckOfWhatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, err := OpenDir(DirOptions{Path: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		goOn := make(chan struct{})
		d.usable.begin(func() (struct{}, error) {
			<-goOn
			return struct{}{}, d.check()
		})
		for range 2 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if err := d.Check(ctx); !errors.Is(err, ErrNoAnswer) || !strings.Contains(err.Error(), d.path) {
				t.Errorf("while it hangs: %v", err)
			}
			cancel()
		}
		close(goOn)
		if err := d.Check(t.Context()); err != nil {
			t.Errorf("once it answers: %v", err)
		}
	})
}
