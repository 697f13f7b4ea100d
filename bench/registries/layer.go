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

// The ways in which the PATCH of a large layer announces its length.
const (
	encodingChunked = "chunked" // without a length, as crane and docker do
	encodingLength  = "length"  // Content-Length
)

// layerSource makes large layers that no server has seen, at no cost in the measured time.
// Random bytes are made once and repeated; each chunk is stamped with its number, so that
// no two are equal, and the last also with a number that makes the layer unique. So the
// hash of all but the last chunk is computed only once.
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

// hashPrefix hashes all but the last chunk, once.
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

// chunk stamps and returns chunk i. It is valid until the next call on any
// layer of the source: one layer is sent at a time.
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

// writeChunked writes the layer in the chunked transfer coding (RFC 9112
// section 7.1).
func (l layer) writeChunked(w io.Writer) error {
	err := l.each(func(b []byte) error {
		// Buffers are one writev on a TCP connection.
		parts := net.Buffers{fmt.Appendf(nil, "%x\r\n", len(b)), b, []byte("\r\n")}
		_, err := parts.WriteTo(w)
		return err
	})
	if err != nil {
		return err
	}
	return writeAll(w, []byte("0\r\n\r\n"))
}
