package blob

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metered returns a store that does the same as `store` and registers metrics: the duration of
// each operation, by its name and result, and the numbers of bytes written and read. The
// operation of a reader or writer lasts until it is closed.
func Metered(store Store, reg prometheus.Registerer) Store {
	factory := promauto.With(reg)
	return &metered{
		Store: store,
		took: factory.NewHistogramVec(prometheus.HistogramOpts{
			Name: "purser_storage_operation_duration_seconds", Help: "Time of operations on the blob store.",
			Buckets: []float64{.0001, .0005, .001, .005, .01, .05, .1, .5, 1, 5, 30, 300},
		}, []string{"operation", "result"}),
		bytes: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "purser_storage_bytes_total", Help: "Bytes written to and read from the blob store; bytes that sendfile sends count when the file is opened.",
		}, []string{"operation"}),
	}
}

type metered struct {
	Store
	took  *prometheus.HistogramVec
	bytes *prometheus.CounterVec
}

// observe records how long an operation has taken since `began`, and its result. The operation
// defers the call and passes a pointer to its error, so that observe sees the error which the
// operation returns.
func (m *metered) observe(operation string, began time.Time, err *error) {
	result := "ok"
	switch {
	case *err == nil:
	case errors.Is(*err, ErrNotFound):
		result = "not_found"
	default:
		result = "error"
	}
	m.took.WithLabelValues(operation, result).Observe(time.Since(began).Seconds())
}

func (m *metered) Resume(ctx context.Context, base string, state State, size int64, claim Claim, numbers Numbers) (_ Writer, err error) {
	defer m.observe("resume", time.Now(), &err)
	w, err := m.Store.Resume(ctx, base, state, size, claim, numbers)
	if err != nil {
		return nil, err
	}
	return &meteredWriter{Writer: w, m: m}, nil
}

func (m *metered) Open(ctx context.Context, key string, off, length int64) (r io.ReadCloser, err error) {
	defer m.observe("open", time.Now(), &err)
	r, err = m.Store.Open(ctx, key, off, length)
	if err == nil && length > 0 {
		m.bytes.WithLabelValues("read").Add(float64(length))
	}
	return r, err
}

func (m *metered) Delete(ctx context.Context, keys []string) (err error) {
	defer m.observe("delete", time.Now(), &err)
	return m.Store.Delete(ctx, keys)
}

func (m *metered) DeleteUpload(ctx context.Context, base, keep string) (err error) {
	defer m.observe("delete_upload", time.Now(), &err)
	return m.Store.DeleteUpload(ctx, base, keep)
}

func (m *metered) Stat(ctx context.Context, key string) (_ Object, err error) {
	defer m.observe("stat", time.Now(), &err)
	return m.Store.Stat(ctx, key)
}

func (m *metered) List(ctx context.Context, prefix string) iter.Seq2[Object, error] {
	return meteredList(m, "list", m.Store.List(ctx, prefix))
}

func (m *metered) Unfinished(ctx context.Context, prefix string) iter.Seq2[Unfinished, error] {
	return meteredList(m, "list_unfinished", m.Store.Unfinished(ctx, prefix))
}

// meteredList records the duration of a listing, from the request for its first element until
// the listing ends or the caller stops reading.
func meteredList[T any](m *metered, operation string, list iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var failed error
		defer m.observe(operation, time.Now(), &failed)
		for v, err := range list {
			if err != nil {
				failed = err
			}
			if !yield(v, err) {
				return
			}
		}
	}
}

func (m *metered) Check(ctx context.Context) (err error) {
	defer m.observe("check", time.Now(), &err)
	return m.Store.Check(ctx)
}

type meteredWriter struct {
	Writer
	m *metered
}

func (w *meteredWriter) count(n int64) { w.m.bytes.WithLabelValues("written").Add(float64(n)) }

func (w *meteredWriter) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	w.count(int64(n))
	return n, err
}

func (w *meteredWriter) ReadFrom(r io.Reader) (int64, error) {
	n, err := w.Writer.ReadFrom(r)
	w.count(n)
	return n, err
}

func (w *meteredWriter) Save(ctx context.Context) (_ json.RawMessage, err error) {
	defer w.m.observe("save", time.Now(), &err)
	return w.Writer.Save(ctx)
}

func (w *meteredWriter) Finish(ctx context.Context) (_ string, err error) {
	defer w.m.observe("finish", time.Now(), &err)
	return w.Writer.Finish(ctx)
}
