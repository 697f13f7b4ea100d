package worker

import "context"

// Await calls fn in a goroutine of its own and returns what fn returns. If ctx ends first, Await
// returns the context's error, and fn goes on: its result is dropped.
func Await[T any](ctx context.Context, fn func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := fn()
		done <- result{value, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}
