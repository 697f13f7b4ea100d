package blob

import (
	"context"
	"errors"
	"sync"
)

// ErrNoAnswer says that a call hasn't returned in time. A file system whose server hangs, as on NFS,
// doesn't answer.
var ErrNoAnswer = errors.New("it doesn't answer")

// Question asks something by calls that may never return and heed no context, such as stat in a file
// system whose server hangs. It makes one call at a time, however many ask, so that such calls don't pile
// up. The zero value is a Question.
type Question[T any] struct {
	mu   sync.Mutex
	call *call[T] // in flight, or nil
}

type call[T any] struct {
	over  chan struct{} // is closed when the others are set
	value T
	err   error
}

// Ask calls fn in a goroutine of its own and returns what fn returns. If a call is in flight, Ask waits
// for that one instead. If ctx ends first, the call goes on, and Ask returns ErrNoAnswer, or
// context.Canceled if the asker has gone.
func (q *Question[T]) Ask(ctx context.Context, fn func() (T, error)) (T, error) {
	c := q.begin(fn)
	select {
	case <-c.over:
		return c.value, c.err
	case <-ctx.Done():
	}
	var none T
	if err := ctx.Err(); !errors.Is(err, context.DeadlineExceeded) {
		return none, err
	}
	return none, ErrNoAnswer
}

// begin returns the call in flight, or begins one.
func (q *Question[T]) begin(fn func() (T, error)) *call[T] {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.call != nil {
		return q.call
	}
	c := &call[T]{over: make(chan struct{})}
	q.call = c
	go func() {
		c.value, c.err = fn()
		q.mu.Lock()
		defer q.mu.Unlock()
		q.call = nil
		close(c.over)
	}()
	return c
}
