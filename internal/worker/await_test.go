package worker_test

import (
	"context"
	"errors"
	"testing"

	"github.com/purser-registry/purser/internal/worker"
)

func TestAwait(t *testing.T) {
	t.Parallel()
	failed := errors.New("failed")
	n, err := worker.Await(t.Context(), func() (int, error) { return 7, failed })
	if n != 7 || !errors.Is(err, failed) {
		t.Errorf("got %d, %v", n, err)
	}

	// The context ends while the function runs. Await returns; the function ends later.
	ctx, cancel := context.WithCancel(t.Context())
	ended, goOn := make(chan struct{}), make(chan struct{})
	n, err = worker.Await(ctx, func() (int, error) {
		defer close(ended)
		cancel()
		<-goOn
		return 7, nil
	})
	if n != 0 || !errors.Is(err, context.Canceled) {
		t.Errorf("got %d, %v after the end of the context", n, err)
	}
	close(goOn)
	<-ended
}
