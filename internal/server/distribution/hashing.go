package distribution

import (
	"hash"
	"io"
)

// hashingReader reads from `r` and hashes the bytes that it reads. A goroutine hashes the bytes
// of one Read while the caller writes them to the store; the next Read waits until they are
// hashed. So, on two cores, hashing a large layer takes hardly any extra time. The caller must
// not change the buffer that it gave to Read before it calls Read or finish again.
type hashingReader struct {
	r       io.Reader
	pieces  chan []byte
	hashed  chan struct{}
	pending bool
}

// newHashingReader starts the hashing goroutine; finish ends it.
func newHashingReader(r io.Reader, h hash.Hash) *hashingReader {
	hr := &hashingReader{r: r, pieces: make(chan []byte), hashed: make(chan struct{}, 1)}
	go func() {
		defer close(hr.hashed)
		for p := range hr.pieces {
			h.Write(p)
			hr.hashed <- struct{}{}
		}
	}()
	return hr
}

func (hr *hashingReader) Read(p []byte) (int, error) {
	hr.wait()
	n, err := hr.r.Read(p)
	if n > 0 {
		hr.pieces <- p[:n]
		hr.pending = true
	}
	if err != nil { // there may be no next Read, which would wait
		hr.wait()
	}
	return n, err
}

func (hr *hashingReader) wait() {
	if hr.pending {
		<-hr.hashed
		hr.pending = false
	}
}

// finish waits until all bytes that were read are hashed, and ends the hashing goroutine.
func (hr *hashingReader) finish() {
	hr.wait()
	close(hr.pieces)
	<-hr.hashed
}
