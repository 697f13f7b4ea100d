package registries

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net"
)

const (
	chunkSize = 1 << 20 // bytes written at a time
	blockSize = 16      // chunks of random data, used over and over
)

// These are the ways in which the PATCH request of a large layer says how long the layer is.
const (
	encodingChunked = "chunked" // without a length, as crane and docker do
	encodingLength  = "length"  // Content-Length
)

// layerSource makes large layers that no server has seen before, and uses little CPU time for
// it. A layer repeats a block of random chunks that is made only once. Each chunk of the layer
// begins with its number, so all of its chunks differ. The last chunk also has a random number
// (nonce), so all layers differ; the SHA-256 of the other chunks is the same for all layers
// and is computed only once.
type layerSource struct {
	size   int64
	block  []byte // blockSize chunks
	prefix []byte // the state of sha256 before the last chunk; nil until a layer was made
}

// layer is one layer of a source.
type layer struct {
	*layerSource
	nonce  [16]byte
	digest string
}

func newLayerSource(size int64) (*layerSource, error) {
	if size < chunkSize || size%chunkSize != 0 {
		return nil, fmt.Errorf("layer size %d isn't a multiple of %d bytes", size, chunkSize)
	}
	s := &layerSource{size: size, block: make([]byte, blockSize*chunkSize)}
	rand.Read(s.block) // never fails (crypto/rand)
	return s, nil
}

// hashPrefix computes the state of SHA-256 after all chunks of a layer but the last. It does
// nothing if the state was computed before.
func (s *layerSource) hashPrefix() error {
	if s.prefix != nil {
		return nil
	}
	h := sha256.New()
	err := layer{layerSource: s}.eachUntil(s.chunks()-1, func(b []byte) error { return writeAll(h, b) })
	if err != nil {
		return fmt.Errorf("hashing a layer: %w", err)
	}
	if s.prefix, err = h.(encoding.BinaryMarshaler).MarshalBinary(); err != nil {
		return fmt.Errorf("keeping the state of a hash: %w", err)
	}
	return nil
}

func (s *layerSource) chunks() int64 { return s.size / chunkSize }

// new makes a layer with unique content.
func (s *layerSource) new() (layer, error) {
	if err := s.hashPrefix(); err != nil {
		return layer{}, err
	}
	l := layer{layerSource: s}
	rand.Read(l.nonce[:]) // never fails (crypto/rand)
	h := sha256.New()
	if err := h.(encoding.BinaryUnmarshaler).UnmarshalBinary(s.prefix); err != nil {
		return layer{}, fmt.Errorf("taking up the state of a hash: %w", err)
	}
	h.Write(l.chunk(s.chunks() - 1))
	l.digest = "sha256:" + hex.EncodeToString(h.Sum(nil))
	return l, nil
}

// chunk returns chunk number i of the layer, with this number in its first bytes. All layers
// of a source share the memory of the chunks, so the next call for any of them overwrites the
// chunk, and only one layer may be sent at a time.
func (l layer) chunk(i int64) []byte {
	b := l.block[i%blockSize*chunkSize:][:chunkSize]
	binary.BigEndian.PutUint64(b, uint64(i))
	if i == l.chunks()-1 {
		copy(b[8:], l.nonce[:])
	} else {
		clear(b[8 : 8+len(l.nonce)]) // removes the number of another layer
	}
	return b
}

func (l layer) each(fn func([]byte) error) error { return l.eachUntil(l.chunks(), fn) }

func (l layer) eachUntil(end int64, fn func([]byte) error) error {
	for i := range end {
		if err := fn(l.chunk(i)); err != nil {
			return err
		}
	}
	return nil
}

// writeChunked writes the layer to w in the chunked transfer coding (RFC 9112 section 7.1).
func (l layer) writeChunked(w io.Writer) error {
	err := l.each(func(b []byte) error {
		// WriteTo writes these buffers to a TCP connection with a single system call, writev.
		parts := net.Buffers{fmt.Appendf(nil, "%x\r\n", len(b)), b, []byte("\r\n")}
		_, err := parts.WriteTo(w)
		return err
	})
	if err != nil {
		return err
	}
	return writeAll(w, []byte("0\r\n\r\n"))
}
