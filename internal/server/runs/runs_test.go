package runs

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/oci"
)

// wait waits for the end of all runs.
func (rs *List[R]) wait(t *testing.T) {
	t.Helper()
	rs.working.Wait()
}

func TestRunsEnd(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		work func(context.Context, *Run[int]) error
		want api.RunState
		text string
	}{
		{"well", func(_ context.Context, r *Run[int]) error { r.Update(func(n *int) { *n++ }); return nil }, api.RunSucceeded, ""},
		{"badly", func(context.Context, *Run[int]) error { return errors.New("no luck") }, api.RunFailed, "no luck"},
		{"in a panic", func(context.Context, *Run[int]) error { panic("no hope") }, api.RunFailed, "panic: no hope"},
		{"cancelled", func(ctx context.Context, r *Run[int]) error { r.Cancel(); <-ctx.Done(); return ctx.Err() }, api.RunCancelled, ""},
		{"too soon to be cancelled", func(_ context.Context, r *Run[int]) error { r.Cancel(); return nil }, api.RunSucceeded, ""},
	} {
		rs := New[int]("a test", slog.New(slog.DiscardHandler))
		r, err := rs.Start(41, c.work)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		rs.wait(t)
		status, n := r.View()
		if status.State != c.want || status.Error != c.text || status.EndedAt == nil {
			t.Errorf("%s: %+v, want it %s with %q", c.name, status, c.want, c.text)
		}
		if c.name == "well" && n != 42 {
			t.Errorf("it reports %d, want 42", n)
		}
	}
}

func TestRunsAreForgotten(t *testing.T) {
	t.Parallel()
	rs := New[int]("a test", slog.New(slog.DiscardHandler))
	var ids []string
	for range Kept + 2 {
		r, err := rs.Start(0, func(context.Context, *Run[int]) error { return nil })
		if err != nil {
			t.Fatal(err)
		}
		rs.wait(t)
		ids = append(ids, r.status.ID)
	}
	for i, id := range ids {
		_, err := rs.Find(id)
		if kept := i >= 2; kept != (err == nil) {
			t.Errorf("run %d of %d: %v", i, len(ids), err)
		}
	}
}

func TestRunsStopWithTheServer(t *testing.T) {
	t.Parallel()
	rs := New[int]("a test", slog.New(slog.DiscardHandler))
	hold := make(chan struct{})
	r, err := rs.Start(0, func(ctx context.Context, _ *Run[int]) error { <-ctx.Done(); <-hold; return ctx.Err() })
	if err != nil {
		t.Fatal(err)
	}
	if _, err := rs.Start(0, nil); err == nil || !strings.Contains(err.Error(), r.status.ID) {
		t.Errorf("beside another: %v, want that one named", err)
	}
	late, cancel := context.WithCancel(t.Context())
	cancel()
	rs.Close(late) // returns when the context ends
	if _, err := rs.Start(0, nil); oci.CodeOf(err) != oci.Unavailable {
		t.Errorf("after the end: %v, want %s", err, oci.Unavailable)
	}
	close(hold)
	rs.Close(t.Context())
	if status, _ := r.View(); status.State != api.RunCancelled {
		t.Errorf("after the end it is %s", status.State)
	}
}
