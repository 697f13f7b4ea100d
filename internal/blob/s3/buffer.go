package s3

import (
	"errors"
	"io"
	"sync"
)

const segmentSize = 256 << 10

var segments = sync.Pool{New: func() any { return new([segmentSize]byte) }}

// buffer holds the bytes of one part in segments of memory from a pool, so that a small part
// uses little memory.
type buffer struct {
	segs []*[segmentSize]byte
	n    int64
}

// space returns unused memory of the buffer, at most `limit` bytes. The caller writes bytes
// into it and then passes their number to buffer.add.
func (b *buffer) space(limit int64) []byte {
	used := int(b.n % segmentSize)
	if b.n == int64(len(b.segs))*segmentSize {
		b.segs = append(b.segs, segments.Get().(*[segmentSize]byte))
		used = 0
	}
	p := b.segs[len(b.segs)-1][used:]
	return p[:min(int64(len(p)), limit)]
}

func (b *buffer) add(n int) { b.n += int64(n) }

// free returns the buffer's segments to the pool. The caller must have closed all values of
// the type body that read this buffer.
func (b *buffer) free() {
	for _, s := range b.segs {
		segments.Put(s)
	}
	b.segs, b.n = nil, 0
}

// body reads the bytes of a buffer as the body of a request. It can seek, so that the request
// can be repeated.
//
// An HTTP transport may still read the body of a request after the request has failed. Once
// the body is closed, the transport gets an error instead of bytes, so the buffer's segments
// can be reused.
type body struct {
	mu     sync.Mutex
	b      *buffer
	off    int64
	closed bool
}

var errBodyClosed = errors.New("the request has ended")

func (r *body) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return 0, errBodyClosed
	}
	if r.off >= r.b.n {
		return 0, io.EOF
	}
	from := r.b.segs[r.off/segmentSize][r.off%segmentSize:]
	n := copy(p, from[:min(int64(len(from)), r.b.n-r.off)])
	r.off += int64(n)
	return n, nil
}

func (r *body) Seek(off int64, whence int) (int64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch whence {
	case io.SeekCurrent:
		off += r.off
	case io.SeekEnd:
		off += r.b.n
	}
	if off < 0 {
		return 0, errors.New("negative offset")
	}
	r.off = off
	return off, nil
}

func (r *body) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
}
