package server

import (
	"hash"
	"io"
)

// hashingReader hashes what is read through it, beside the reading and whatever
// the caller does with the bytes until it reads again: on two cores a large
// layer is hashed while it is written. The caller must leave the bytes as they
// are until its next Read, or until finish.
type hashingReader struct {
	r       io.Reader
	pieces  chan []byte
	hashed  chan struct{}
	pending bool
}

// newHashingReader starts the goroutine that hashes; finish ends it.
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
	if err != nil { // there is no next Read to wait in
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

// finish waits until all that was read is hashed.
func (hr *hashingReader) finish() {
	hr.wait()
	close(hr.pieces)
	<-hr.hashed
}
