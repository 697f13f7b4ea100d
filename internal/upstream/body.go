package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// answer says how large the answer to a request may be.
type answer struct {
	what     string // for errors
	bytes    int64
	verified bool // by a digest
}

type answerKey struct{}

// withAnswer returns a context for a request whose answer has a limit of its own.
func withAnswer(ctx context.Context, a answer) context.Context {
	return context.WithValue(ctx, answerKey{}, a)
}

func answerOf(ctx context.Context) answer {
	if a, ok := ctx.Value(answerKey{}).(answer); ok {
		return a
	}
	return answer{what: "the answer", bytes: maxAnswer}
}

// errSilent is the cause with which a request is cancelled of which nothing comes any more.
var errSilent = errors.New("nothing came")

// body reads the body of an answer. It ends with an error if more comes than may come, nothing
// comes for a while, or too little. Only the time in which Read waits counts, so whoever reads
// slowly doesn't make the registry seem slow.
type body struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	inner  io.ReadCloser
	limit  answer
	left   int64 // of the limit
	slow   Limits
	alarm  *time.Timer

	waited time.Duration // in this period
	came   int64         // in this period
	close  sync.Once
}

func newBody(ctx context.Context, cancel context.CancelCauseFunc, inner io.ReadCloser, a answer, slow Limits) *body {
	b := &body{ctx: ctx, cancel: cancel, inner: inner, limit: a, left: a.bytes, slow: slow}
	b.alarm = time.AfterFunc(slow.Silence, func() { cancel(errSilent) })
	b.alarm.Stop()
	return b
}

func (b *body) Read(p []byte) (int, error) {
	if b.left < 0 {
		return 0, b.tooLarge()
	}
	if int64(len(p)) > b.left+1 {
		p = p[:b.left+1] // one more shows that there is more
	}
	b.alarm.Reset(b.slow.Silence)
	began := time.Now()
	n, err := b.inner.Read(p)
	b.alarm.Stop()
	b.waited += time.Since(began)
	b.came += int64(n)
	if b.left -= int64(n); b.left < 0 {
		return n - 1, b.tooLarge()
	}
	if err != nil {
		if errors.Is(context.Cause(b.ctx), errSilent) {
			err = fmt.Errorf("nothing came from the registry for %s", b.slow.Silence)
		}
		return n, err
	}
	if b.waited < b.slow.Silence {
		return n, nil
	}
	if float64(b.came) < float64(b.slow.Rate)*b.waited.Seconds() {
		err := fmt.Errorf("the registry sends too slowly: %d bytes in %s; at least %d a second are expected", b.came, b.waited.Round(time.Millisecond), b.slow.Rate)
		b.cancel(err)
		return n, err
	}
	b.waited, b.came = 0, 0
	return n, nil
}

func (b *body) tooLarge() error {
	return fmt.Errorf("%s has more than %d bytes", b.limit.what, b.limit.bytes)
}

func (b *body) Close() error {
	var err error
	b.close.Do(func() {
		b.alarm.Stop()
		b.cancel(nil)
		err = b.inner.Close()
	})
	return err
}
