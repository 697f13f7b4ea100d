package autoprune_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/catalog"
)

// TestTwoRepositoriesAtOnce: while a place for previews is free, two repositories are looked at at once,
// and never more; without a free place, one. The results come in the order of the repositories, although
// the second is ready first. An error ends it, and gives the places back.
func TestTwoRepositoriesAtOnce(t *testing.T) {
	t.Parallel()
	r := setup(t)
	var want []string
	for i := range 6 {
		want = append(want, fmt.Sprintf("app/r%d", i))
	}
	var namespace int64
	for _, path := range want {
		namespace = r.repository(path).NamespaceID
	}
	giveBack := r.pruner.TakePlace() // the caller's
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
	r.must(autoprune.LookInOrder(t.Context(), r.pruner, namespace, meet, take))
	if !slices.Equal(got, want) || most.Load() > 2 || r.pruner.TakenPlaces() != 1 {
		t.Errorf("got %v, up to %d at once, %d places taken", got, most.Load(), r.pruner.TakenPlaces())
	}

	other := r.pruner.TakePlace()
	got = nil
	most.Store(0)
	r.must(autoprune.LookInOrder(t.Context(), r.pruner, namespace, look, take))
	if other(); !slices.Equal(got, want) || most.Load() != 1 {
		t.Errorf("without a free place: got %v, up to %d at once", got, most.Load())
	}

	broken := errors.New("broken")
	got = nil
	err := autoprune.LookInOrder(t.Context(), r.pruner, namespace, func(ctx context.Context, target catalog.Repository) (string, error) {
		switch target.Path {
		case want[1]:
			return target.Path, broken
		case want[2]:
			<-ctx.Done()
		}
		return target.Path, nil
	}, take)
	if !errors.Is(err, broken) || !slices.Equal(got, want[:2]) || r.pruner.TakenPlaces() != 1 {
		t.Errorf("after an error: %v, %v, %d places taken", err, got, r.pruner.TakenPlaces())
	}
	func() {
		defer func() {
			if p := recover(); p != "look fails" {
				t.Errorf("the panic of look: %v", p)
			}
		}()
		_ = autoprune.LookInOrder(t.Context(), r.pruner, namespace, func(context.Context, catalog.Repository) (string, error) { panic("look fails") }, take)
	}()
	if r.pruner.TakenPlaces() != 1 {
		t.Errorf("after a panic, %d places are taken", r.pruner.TakenPlaces())
	}
}

// TestTwoAtOnceSayTheSame: previews and forecasts must say the same, whether two repositories are looked at
// at once or one after the other.
func TestTwoAtOnceSayTheSame(t *testing.T) {
	t.Parallel()
	r := setup(t, func(o *autoprune.Options) { o.Page = 5 })
	l := &library{registry: r, rnd: rand.New(rand.NewPCG(10, 1))}
	l.fill()
	for i := range 4 {
		l.stock(r.repository(fmt.Sprintf("n/more%d", i)))
	}
	r.policy(autoprune.Target{Namespace: "n"}, `{"method": "number_of_tags", "numTags": 1, "mode": "observe"}`)
	r.policy(autoprune.Target{Repository: "n/more1"}, `{"method": "creation_date", "olderThan": "1d", "keepUntagged": "30d"}`)
	say := func() (texts []string) {
		t.Helper()
		for _, limit := range []int{1, 7, 10_000} {
			p, err := r.pruner.Preview(t.Context(), autoprune.Target{Namespace: "n"}, autoprune.PreviewOptions{Limit: limit})
			r.must(err)
			p.Now = time.Time{}
			text, err := json.Marshal(p)
			r.must(err)
			texts = append(texts, string(text))
		}
		f, err := r.pruner.Forecast(t.Context(), autoprune.Target{Namespace: "n"}, autoprune.ForecastOptions{Days: 3})
		r.must(err)
		f.Now, f.Since = time.Time{}, time.Time{}
		for i := range f.Days {
			f.Days[i].At = time.Time{}
		}
		text, err := json.Marshal(f)
		r.must(err)
		return append(texts, string(text))
	}
	two := say()
	giveBack := r.pruner.TakePlace()
	one := say()
	giveBack()
	for i := range two {
		if one[i] != two[i] {
			t.Errorf("one after the other:\n%s\ntwo at once:\n%s", one[i], two[i])
		}
	}
}
