package s3

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// defaultTimeout is the default of Options.Timeout.
	defaultTimeout = 30 * time.Second
	// workTime is how many times as long the service may take to copy a part or to complete an upload:
	// it does both without a sign of progress.
	workTime = 10
)

// ErrHangs says that the service didn't go on within Options.Timeout.
var ErrHangs = errors.New("the S3 service hangs")

// patienceKey is the key of a call's patience in its context.
type patienceKey struct{}

// patience is that of a call, whose requests minio repeats when they fail.
type patience struct{ hung atomic.Bool }

// patiently returns the context of a call. When one of its requests hangs, the call isn't repeated:
// a client waits for it, and it would probably hang again.
func patiently(ctx context.Context) context.Context {
	return context.WithValue(ctx, patienceKey{}, new(patience))
}

// impatient is an HTTP transport that gives up a request when it makes no progress for a time:
// when the service takes no bytes of the request, doesn't begin its answer, or sends no bytes of it.
// The time in which the process that sends or reads the bytes is slow doesn't count.
type impatient struct {
	next  http.RoundTripper
	limit time.Duration
}

// CloseIdleConnections closes those of the transport.
func (p *impatient) CloseIdleConnections() {
	if t, ok := p.next.(interface{ CloseIdleConnections() }); ok {
		t.CloseIdleConnections()
	}
}

// RoundTrip implements http.RoundTripper.
func (p *impatient) RoundTrip(r *http.Request) (*http.Response, error) {
	call, _ := r.Context().Value(patienceKey{}).(*patience)
	if call == nil {
		call = new(patience)
	}
	limit := p.limit
	if r.Header.Get("X-Amz-Copy-Source") != "" || r.Method == http.MethodPost && r.URL.Query().Has("uploadId") {
		limit *= workTime
	}
	gaveUp := fmt.Errorf("%w: there was no progress for %s", ErrHangs, limit)
	if call.hung.Load() {
		if r.Body != nil {
			r.Body.Close() //nolint:errcheck // as a transport has to
		}
		return nil, gaveUp
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	w := &watch{limit: limit, fire: func() {
		call.hung.Store(true)
		cancel(gaveUp)
	}}
	explain := func(err error) error {
		if err != nil && !errors.Is(err, io.EOF) && errors.Is(context.Cause(ctx), ErrHangs) {
			return gaveUp
		}
		return err
	}
	r = r.WithContext(ctx)
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = &sentBody{r.Body, w}
	}
	w.start()
	res, err := p.next.RoundTrip(r)
	w.stop()
	if err != nil {
		err = explain(err)
		cancel(nil)
		return nil, err
	}
	res.Body = &answerBody{res.Body, &watch{limit: limit, fire: w.fire}, explain, func() { cancel(nil) }}
	return res, nil
}

// watch calls `fire` when it has run for `limit` without progress.
type watch struct {
	limit time.Duration
	fire  func()
	mu    sync.Mutex
	timer *time.Timer
	runs  bool
}

func (w *watch) start() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.runs = true
	if w.timer == nil {
		w.timer = time.AfterFunc(w.limit, w.fire)
	} else {
		w.timer.Reset(w.limit)
	}
}

func (w *watch) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.runs = false
	w.timer.Stop()
}

// progress lets the time begin anew, if the watch runs. A transport may read the rest of a request's
// body after it has got the answer.
func (w *watch) progress() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.runs {
		w.timer.Reset(w.limit)
	}
}

// pause stops the time while the service waits for bytes of the request; progress ends the pause.
func (w *watch) pause() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.runs {
		w.timer.Stop()
	}
}

// sentBody is the body of a request. Each time that the transport asks for bytes, it has sent those
// before. Its source may be slow, such as another store.
type sentBody struct {
	io.ReadCloser
	w *watch
}

func (b *sentBody) Read(p []byte) (int, error) {
	b.w.pause()
	defer b.w.progress()
	return b.ReadCloser.Read(p)
}

// answerBody is the body of an answer.
type answerBody struct {
	io.ReadCloser
	w       *watch
	explain func(error) error
	done    func()
}

func (b *answerBody) Read(p []byte) (int, error) {
	b.w.start()
	n, err := b.ReadCloser.Read(p)
	b.w.stop()
	return n, b.explain(err)
}

func (b *answerBody) Close() error {
	defer b.done()
	return b.ReadCloser.Close()
}
