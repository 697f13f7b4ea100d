package snapshot

import (
	"context"
	"sync"

	"github.com/purser-registry/purser/internal/catalog"
)

// InOrder calls `look` for each repository of a namespace, and gives the results to `take`, one
// after the other in the order of the repositories' ids. It ends with the first error that `take`
// returns. `take` gets the errors of `look` too.
//
// The caller has a place (TakePlace). While another place is free, InOrder looks at
// two repositories at once, since PostgreSQL and this process would otherwise take turns. It gives that
// place back after each repository, so another preview waits for one repository at most. So `look` must
// change nothing that another call of it, or `take`, uses.
func InOrder[T any](ctx context.Context, r *Reader, namespace int64, look func(context.Context, catalog.Repository) (T, error), take func(T, error) error) error {
	q := inOrder[T]{r: r, look: look, take: take}
	defer q.group.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for after := int64(0); ; {
		list, err := r.List(ctx, namespace, after, 1000)
		if err != nil {
			return err
		}
		for _, target := range list {
			if err := q.start(ctx, target); err != nil {
				return err
			}
			after = target.ID
		}
		if len(list) > 0 {
			continue
		}
		for len(q.begun) > 0 {
			if err := q.finish(); err != nil {
				return err
			}
		}
		return nil
	}
}

// inOrder has the repositories that are looked at.
type inOrder[T any] struct {
	r     *Reader
	look  func(context.Context, catalog.Repository) (T, error)
	take  func(T, error) error
	group sync.WaitGroup
	begun []begunLook[T] // in the order of the repositories, one of them at most in the caller's place
	own   bool           // one of them is in the caller's place
}

type begunLook[T any] struct {
	own    bool
	result chan lookResult[T]
}

type lookResult[T any] struct {
	value T
	err   error
	panic any
}

// start begins to look at a repository, once there is a place for it.
func (q *inOrder[T]) start(ctx context.Context, target catalog.Repository) error {
	b := begunLook[T]{result: make(chan lookResult[T], 1)}
	for b.own = !q.own; !b.own && !q.another(); b.own = !q.own {
		if err := q.finish(); err != nil {
			return err
		}
	}
	q.own = q.own || b.own
	q.begun = append(q.begun, b)
	q.group.Go(func() {
		var r lookResult[T]
		defer func() {
			r.panic = recover()
			if !b.own {
				<-q.r.previews
			}
			b.result <- r
		}()
		r.value, r.err = q.look(ctx, target)
	})
	return nil
}

// another takes another place, if one is free.
func (q *inOrder[T]) another() bool {
	if len(q.begun) > 1 {
		return false
	}
	select {
	case q.r.previews <- struct{}{}:
		return true
	default:
		return false
	}
}

// finish waits for the first of the repositories, and gives the result to `take`.
func (q *inOrder[T]) finish() error {
	b := q.begun[0]
	q.begun = q.begun[1:]
	r := <-b.result
	if r.panic != nil {
		panic(r.panic) // in the caller's goroutine, as if it had called look
	}
	q.own = q.own && !b.own
	return q.take(r.value, r.err)
}
