package blobtest

import (
	"bytes"
	"io"
	"slices"
	"testing"

	"github.com/purser-registry/purser/internal/blob"
)

// borrowed tests a rule for ReadFrom: it may not overwrite the bytes of the last Read before
// it calls Read again, since the reader may still hash them. The test runs with uploads of
// which earlier requests have saved as many bytes as each size in b.Sizes.
func borrowed(t *testing.T, b Backend) {
	s := b.Open(t)
	for seed, saved := range b.Sizes {
		u := NewUpload()
		u.Append(t, s, Bytes(uint64(seed), saved))
		data := Bytes(uint64(seed)+100, 2*b.Part+5)
		a := u.Begin(t, s)
		r := &borrowingReader{r: bytes.NewReader(data), between: func() { useBuffers(t, s) }}
		if n, err := a.ReadFrom(r); err != nil || n != int64(len(data)) {
			t.Fatalf("after %d saved bytes: %d, %v", saved, n, err)
		}
		if r.changed {
			t.Errorf("after %d saved bytes: the bytes of a Read changed before the next Read", saved)
		}
		a.data = append(a.data, data)
		if err := a.Save(t.Context()); err != nil {
			t.Fatal(err)
		}
		a.MustClose(t)
		u.Complete(t, s, nil)
	}
}

// useBuffers writes zeros to another upload, so that the store reuses all of its free buffers.
func useBuffers(t *testing.T, s blob.Store) {
	zeros := bytes.NewReader(make([]byte, 1<<20))
	other := NewUpload().Begin(t, s)
	defer other.MustClose(t)
	if _, err := other.ReadFrom(struct{ io.Reader }{zeros}); err != nil {
		t.Error(err)
	}
}

// borrowingReader checks, at each Read, whether the caller has overwritten the bytes that the
// previous Read returned.
type borrowingReader struct {
	r       io.Reader
	between func() // called before the bytes are compared, early in each of the first reads
	reads   int
	p, want []byte
	changed bool
}

func (b *borrowingReader) Read(p []byte) (int, error) {
	if b.reads++; b.reads <= 4 {
		b.between()
	}
	b.changed = b.changed || !bytes.Equal(b.p, b.want)
	n, err := b.r.Read(p)
	b.p, b.want = p[:n], slices.Clone(p[:n])
	return n, err
}
