package s3_test

import (
	"bytes"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/blob/blobtest"
	"github.com/purser-registry/purser/internal/limit"
)

// Several uploads share a memory limit that suffices for one part. All of them must finish,
// one after the other, and return their memory.
func TestMemoryOfOnePart(t *testing.T) {
	t.Parallel()
	s := newStore(t, setup(t))
	reg := prometheus.NewRegistry()
	m := limit.NewMetrics(reg)
	b := limit.NewBudget(limit.BudgetOptions{Total: 8 << 20, Share: 100, Metrics: m}) // streams have 6 MiB
	var all sync.WaitGroup
	for i := range 2 {
		all.Go(func() {
			l := b.Lease("a")
			defer l.Close()
			a, err := blobtest.NewUpload().Attempt(limit.WithLease(t.Context(), l), s)
			if err != nil {
				t.Error(err)
				return
			}
			defer a.Close() //nolint:errcheck // what counts is finished
			text := blobtest.Bytes(uint64(i), 3*partSize+7)
			if n, err := a.ReadFrom(io.MultiReader(bytes.NewReader(text))); err != nil || n != int64(len(text)) {
				t.Errorf("%d bytes were written: %v", n, err)
				return
			}
			key, err := a.Finish(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			if got := read(t, s, key); !bytes.Equal(got, text) {
				t.Errorf("upload %d differs", i)
			}
		})
	}
	all.Wait()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "purser_body_memory_bytes" && f.GetMetric()[0].GetGauge().GetValue() != 0 {
			t.Errorf("%v bytes are still held", f.GetMetric()[0].GetGauge().GetValue())
		}
	}
}

// A request whose body has a known length must reserve no more memory than the body needs. An
// upload that can't reserve the memory for a part must wait until other uploads return theirs.
func TestMemoryOfASmallBody(t *testing.T) {
	t.Parallel()
	s := newStore(t, setup(t))
	b := limit.NewBudget(limit.BudgetOptions{Total: 8 << 20, Share: 100})
	l := b.Lease("a")
	l.Expect(1000)
	a, err := blobtest.NewUpload().Attempt(limit.WithLease(t.Context(), l), s)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close() //nolint:errcheck // what counts is finished
	text := blobtest.Bytes(1, 1000)
	if _, err := a.ReadFrom(bytes.NewReader(text)); err != nil {
		t.Fatal(err)
	}
	if other := b.Lease("b"); !other.TryStream(5 << 20) {
		t.Error("a body of 1,000 bytes has more than a segment and its own")
	} else {
		ctx := limit.WithLease(t.Context(), b.Lease("c"))
		waiting, err := blobtest.NewUpload().Attempt(ctx, s)
		if err != nil {
			t.Fatal(err)
		}
		defer waiting.Close() //nolint:errcheck // it has nothing
		timer := time.AfterFunc(100*time.Millisecond, other.Close)
		defer timer.Stop()
		if n, err := waiting.ReadFrom(bytes.NewReader(text)); n != 1000 || err != nil {
			t.Errorf("after memory was given back: %d, %v", n, err)
		}
	}
	key, err := a.Finish(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := read(t, s, key); !bytes.Equal(got, text) {
		t.Error("the object differs")
	}
}

func read(t *testing.T, s blob.Store, key string) []byte {
	r, err := s.Open(t.Context(), key, 0, -1)
	if err != nil {
		t.Error(err)
		return nil
	}
	defer r.Close() //nolint:errcheck // only read
	text, err := io.ReadAll(r)
	if err != nil {
		t.Error(err)
	}
	return text
}
