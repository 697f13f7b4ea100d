package snapshot_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/autoprune/autoprunetest"
	"github.com/purser-registry/purser/internal/autoprune/snapshot"
	"github.com/purser-registry/purser/internal/catalog"
)

// TestTwoRepositoriesAtOnce: while a place for previews is free, two repositories are looked at at once,
// and never more; without a free place, one. The results come in the order of the repositories, although
// the second is ready first. An error ends it, and gives the places back.
func TestTwoRepositoriesAtOnce(t *testing.T) {
	t.Parallel()
	r := autoprunetest.New(t)
	reader := snapshot.New(snapshot.Options{DB: r.DB})
	var want []string
	for i := range 6 {
		want = append(want, fmt.Sprintf("app/r%d", i))
	}
	var namespace int64
	for _, path := range want {
		namespace = r.Repository(path).NamespaceID
	}
	giveBack, err := reader.TakePlace(t.Context()) // the caller's
	r.Must(err)
	defer giveBack()
	var running, most atomic.Int32
	arrived := make(chan struct{})
	look := func(_ context.Context, target catalog.Repository) (string, error) {
		n := running.Add(1)
		defer running.Add(-1)
		for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
		}
		return target.Path, nil
	}
	meet := func(ctx context.Context, target catalog.Repository) (string, error) { // the first waits for the second
		switch target.Path {
		case want[0]:
			select {
			case <-arrived:
			case <-time.After(time.Minute):
				return "", errors.New("the second repository isn't looked at beside the first")
			}
		case want[1]:
			defer close(arrived)
		}
		return look(ctx, target)
	}
	var got []string
	take := func(path string, err error) error {
		got = append(got, path)
		return err
	}
	r.Must(snapshot.InOrder(t.Context(), reader, namespace, meet, take))
	if !slices.Equal(got, want) || most.Load() > 2 || reader.TakenPlaces() != 1 {
		t.Errorf("got %v, up to %d at once, %d places taken", got, most.Load(), reader.TakenPlaces())
	}

	other, err := reader.TakePlace(t.Context())
	r.Must(err)
	got = nil
	most.Store(0)
	r.Must(snapshot.InOrder(t.Context(), reader, namespace, look, take))
	if other(); !slices.Equal(got, want) || most.Load() != 1 {
		t.Errorf("without a free place: got %v, up to %d at once", got, most.Load())
	}

	broken := errors.New("broken")
	got = nil
	err = snapshot.InOrder(t.Context(), reader, namespace, func(ctx context.Context, target catalog.Repository) (string, error) {
		switch target.Path {
		case want[1]:
			return target.Path, broken
		case want[2]:
			<-ctx.Done()
		}
		return target.Path, nil
	}, take)
	if !errors.Is(err, broken) || !slices.Equal(got, want[:2]) || reader.TakenPlaces() != 1 {
		t.Errorf("after an error: %v, %v, %d places taken", err, got, reader.TakenPlaces())
	}
	func() {
		defer func() {
			if p := recover(); p != "look fails" {
				t.Errorf("the panic of look: %v", p)
			}
		}()
		_ = snapshot.InOrder(t.Context(), reader, namespace, func(context.Context, catalog.Repository) (string, error) { panic("look fails") }, take)
	}()
	if reader.TakenPlaces() != 1 {
		t.Errorf("after a panic, %d places are taken", reader.TakenPlaces())
	}
}
