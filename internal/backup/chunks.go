package backup

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"

	"github.com/purser-registry/purser/internal/blob"
)

// chunkSize is the number of bytes, before compression, after which a chunkWriter begins a new
// file. It bounds the memory that a backup needs.
const chunkSize = 32 << 20

// chunkWriter writes lines to compressed files NAME.000001.gz, NAME.000002.gz and so on. Each
// file has whole lines.
type chunkWriter struct {
	ctx  context.Context
	t    Target
	dir  string // of the backup
	name string
	size int // see chunkSize

	buf   bytes.Buffer
	zip   *gzip.Writer
	raw   int // bytes in the current file, before compression
	ended bool
	lines int64
	files []File
	told  func(lines, bytes int64) // called for each line and file; bytes are compressed
}

func newChunkWriter(ctx context.Context, t Target, dir, name string, told func(lines, bytes int64)) *chunkWriter {
	w := &chunkWriter{ctx: ctx, t: t, dir: dir, name: name, size: chunkSize, told: told}
	w.zip, _ = gzip.NewWriterLevel(&w.buf, gzip.BestSpeed) //nolint:errcheck // the level is valid
	return w
}

// Write accepts one or more lines, or a part of one.
func (w *chunkWriter) Write(p []byte) (int, error) {
	if w.raw >= w.size && w.ended {
		if err := w.flush(); err != nil {
			return 0, err
		}
	}
	n, err := w.zip.Write(p)
	w.raw += n
	if n > 0 {
		w.ended = p[n-1] == '\n'
	}
	lines := int64(bytes.Count(p[:n], []byte{'\n'}))
	w.lines += lines
	w.told(lines, 0)
	return n, err
}

// flush writes the current file, if it has any bytes.
func (w *chunkWriter) flush() error {
	if w.raw == 0 {
		return nil
	}
	if err := w.zip.Close(); err != nil {
		return err
	}
	sum := sha256.Sum256(w.buf.Bytes())
	f := File{Name: fmt.Sprintf("%s.%06d.gz", w.name, len(w.files)+1), Size: int64(w.buf.Len()), SHA256: hex.EncodeToString(sum[:])}
	if err := putBytes(w.ctx, w.t, w.dir+f.Name, w.buf.Bytes()); err != nil {
		return err
	}
	w.files = append(w.files, f)
	w.told(0, f.Size)
	w.buf.Reset()
	w.zip.Reset(&w.buf)
	w.raw = 0
	return nil
}

// chunkReader reads what a chunkWriter has written, and returns ErrDamaged if a file isn't what
// was written.
type chunkReader struct {
	ctx   context.Context
	t     Target
	dir   string
	files []File

	now  File
	file io.ReadCloser
	sum  hash.Hash
	read int64
	zip  *gzip.Reader
}

func newChunkReader(ctx context.Context, t Target, dir string, files []File) *chunkReader {
	return &chunkReader{ctx: ctx, t: t, dir: dir, files: files}
}

// Read implements io.Reader. The last bytes of a file may be returned before the file was
// found to be damaged, but io.EOF isn't returned then.
func (r *chunkReader) Read(p []byte) (int, error) {
	for {
		if r.file == nil {
			if len(r.files) == 0 {
				return 0, io.EOF
			}
			if err := r.open(); err != nil {
				return 0, err
			}
		}
		n, err := r.zip.Read(p)
		if err == nil || n > 0 {
			return n, nil
		}
		if !errors.Is(err, io.EOF) {
			return 0, r.damaged(err)
		}
		if err := r.finish(); err != nil {
			return 0, err
		}
	}
}

func (r *chunkReader) damaged(err error) error {
	return fmt.Errorf("%w: file %s%s: %w", ErrDamaged, r.dir, r.now.Name, err)
}

func (r *chunkReader) open() (err error) {
	r.now, r.files = r.files[0], r.files[1:]
	r.file, err = r.t.Open(r.ctx, r.dir+r.now.Name)
	if errors.Is(err, blob.ErrNotFound) {
		return r.damaged(errors.New("it is missing"))
	}
	if err != nil {
		return err
	}
	r.sum, r.read = sha256.New(), 0
	r.zip, err = gzip.NewReader(bufio.NewReaderSize(hashed{r}, 256<<10))
	if err != nil {
		return r.damaged(err)
	}
	return nil
}

// hashed reads the current file of a chunkReader and hashes its bytes.
type hashed struct{ r *chunkReader }

func (h hashed) Read(p []byte) (int, error) {
	n, err := h.r.file.Read(p)
	h.r.sum.Write(p[:n])
	h.r.read += int64(n)
	return n, err
}

// finish checks the hash of the current file, which was read, and closes it.
func (r *chunkReader) finish() error {
	_, err := io.Copy(io.Discard, hashed{r}) // bytes behind the compressed ones count too
	err = errors.Join(err, r.file.Close())
	r.file = nil
	if err != nil {
		return err
	}
	if r.read != r.now.Size || hex.EncodeToString(r.sum.Sum(nil)) != r.now.SHA256 {
		return r.damaged(errors.New("it doesn't have the bytes that were written"))
	}
	return nil
}

// Close closes the file that is open, if it wasn't read to its end.
func (r *chunkReader) Close() {
	if r.file != nil {
		r.file.Close() //nolint:errcheck // its bytes aren't used
		r.file = nil
	}
}
