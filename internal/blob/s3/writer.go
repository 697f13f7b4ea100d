package s3

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/limit"
)

// state is the blob.State of an upload in S3. The acknowledged bytes are the parts of the
// multipart upload, followed by the bytes of the tail object.
type state struct {
	Next      int64      `json:"next"`           // a higher next from the claim means that an unsaved attempt took numbers
	Left      bool       `json:"left,omitempty"` // the upload may have objects besides the final one
	Multipart *multipart `json:"multipart,omitempty"`
	Tail      string     `json:"tail,omitempty"`
	TailSize  int64      `json:"tail_size,omitempty"`
}

// multipart is an S3 multipart upload. At is the number N in its object's key base-N. The part
// that takes the number n of the upload has the part number n-At.
type multipart struct {
	Key     string `json:"key"`
	ID      string `json:"id"`
	At      int64  `json:"at"`
	Size    int64  `json:"size"` // of all parts together
	Suspect bool   `json:"suspect,omitempty"`
	Parts   []part `json:"parts"`
}

type part struct {
	N    int    `json:"n"`
	ETag string `json:"e"`
}

// writer appends to an upload. While one goroutine sends a full part to the service, the
// caller fills the next part's buffer.
type writer struct {
	s       *Store
	ctx     context.Context
	cancel  context.CancelFunc
	base    string
	given   blob.State // as stored in the upload's row
	numbers blob.Numbers

	st    state
	size  int64 // acknowledged bytes
	total int64 // acknowledged and written bytes

	buf    buffer // the bytes after the parts; includes the tail's once loaded
	mem    *limit.Lease
	taken  int64 // memory that buf has taken from the lease
	loaded bool  // the tail's bytes are in buf
	flight chan sent

	free, end int64 // numbers taken and not used: free <= n < end
	block     int   // how many numbers to take next
	partName  int64 // a number that this attempt used for a part, and no object has; -1: none
	took      bool  // this attempt has taken a number, so its successor will notice it

	made   []string // keys of objects that this writer has put
	former []string // see Former
	kept   bool     // Save or Finish succeeded, so what was made must not be removed
	closed bool

	err error // the first failure, or why nothing more may be written
}

// sent is the outcome of sending one part to the service.
type sent struct {
	buf   *buffer // the writer's goroutine frees it: see sendPart
	taken int64   // memory that buf has taken from the lease
	part  part
	size  int64
	err   error
}

var (
	errEnded      = errors.New("it was saved, finished or closed by this writer already")
	errUploadGone = fmt.Errorf("%w: its multipart upload is gone (does the bucket's lifecycle remove it too early?)", blob.ErrLost)
)

// Resume implements blob.Store.
func (s *Store) Resume(ctx context.Context, base string, given blob.State, size int64, claim blob.Claim, numbers blob.Numbers) (blob.Writer, error) {
	w := &writer{
		s: s, base: base, given: given, numbers: numbers,
		size: size, total: size, block: 1, partName: -1, mem: limit.LeaseOf(ctx),
	}
	w.ctx, w.cancel = context.WithCancel(ctx)
	if err := w.open(claim); err != nil {
		_ = w.Close()
		return nil, fmt.Errorf("resuming upload %s: %w", base, err)
	}
	return w, nil
}

func (w *writer) open(claim blob.Claim) error {
	if err := blob.CheckBase(w.base); err != nil {
		return err
	}
	if len(w.given) != 0 {
		if err := json.Unmarshal(w.given, &w.st); err != nil {
			return fmt.Errorf("reading the upload's state: %w", err)
		}
	}
	next, err := claim(w.ctx)
	if err != nil {
		return err
	}
	stored := w.st.TailSize
	if w.st.Multipart != nil {
		stored += w.st.Multipart.Size
	}
	if stored != w.size {
		return fmt.Errorf("%d bytes are acknowledged, but the upload's state describes %d", w.size, stored)
	}
	if next < w.st.Next {
		return fmt.Errorf("the upload's counter is at %d, but numbers up to %d were used", next, w.st.Next-1)
	}
	w.loaded = w.st.Tail == ""
	if next > w.st.Next { // an attempt took numbers and never saved
		w.st.Next, w.st.Left = next, true
		if w.st.Multipart != nil {
			w.st.Multipart.Suspect = true
		}
	}
	return nil
}

// blame returns ErrFenced if a newer request has claimed the upload; otherwise it returns err,
// the error with which this request failed. A newer request may have completed the multipart
// upload. Then this request gets errors that look as if bytes were lost, or, if the service
// refuses a part before it has read the part, as if the connection was broken.
func (w *writer) blame(ctx context.Context, err error) error {
	if errors.Is(err, blob.ErrFenced) || ctx.Err() != nil {
		return err
	}
	if _, fenced := w.numbers(ctx, 1); errors.Is(fenced, blob.ErrFenced) {
		return fenced
	}
	return err
}

// fail records err as the writer's failure, unless the writer has failed before, and returns
// the first failure. `doing` says in the message what the writer was doing.
func (w *writer) fail(doing string, err error) error {
	if w.err == nil {
		w.err = fmt.Errorf("%s upload %s: %w", doing, w.base, err)
	}
	return w.err
}

// maxBlock is how many numbers a request to an upload takes from the upload's row at once, at
// most. It first takes one number, and then each time twice as many as before. So it wastes at
// most as many numbers as it uses, and an upload in many requests doesn't run out of part
// numbers, while a large upload in one request needs few queries.
const maxBlock = 64

// number returns a number of the upload that wasn't used before. If necessary, it takes
// further numbers from the upload's row; this fails if a newer request has claimed the upload.
func (w *writer) number(ctx context.Context) (int64, error) {
	if w.free == w.end {
		first, err := w.numbers(ctx, w.block)
		if err != nil {
			return 0, err
		}
		w.free, w.end = first, first+int64(w.block)
		w.block = min(2*w.block, maxBlock)
		w.st.Next, w.took = w.end, true
	}
	n := w.free
	w.free++
	return n, nil
}

// objectKey returns a key for a new object. A number that this request has used for a part can
// be used once more in an object's key, so objectKey uses such a number if there is one, and
// otherwise takes a new number.
func (w *writer) objectKey(ctx context.Context) (string, error) {
	n := w.partName
	w.partName = -1
	if n < 0 {
		var err error
		if n, err = w.number(ctx); err != nil {
			return "", err
		}
	}
	return w.key(n), nil
}

func (w *writer) key(n int64) string { return fmt.Sprintf("%s-%d", w.base, n) }

// partLimit returns the size in bytes of the next part: when the buffer has this many bytes,
// it is sent.
func (w *writer) partLimit() int64 {
	if w.st.Multipart == nil {
		return w.s.partSize
	}
	n := max(w.st.Next-w.st.Multipart.At, 1)
	if w.free < w.end {
		n = w.free - w.st.Multipart.At
	}
	return w.s.partSize << min((n-1)/growEvery, maxParts/growEvery)
}

// Write implements blob.Writer.
func (w *writer) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		space, err := w.space()
		if err != nil {
			return n, err
		}
		m := copy(space, p)
		if err := w.added(m); err != nil {
			return n, err
		}
		n, p = n+m, p[m:]
	}
	return n, w.err
}

// ReadFrom implements blob.Writer. It reads directly into the buffer of the next part.
func (w *writer) ReadFrom(r io.Reader) (total int64, err error) {
	for {
		space, err := w.space()
		if err != nil {
			return total, err
		}
		n, readErr := r.Read(space)
		if err := w.added(n); err != nil {
			return total, err
		}
		total += int64(n)
		if readErr == io.EOF { //nolint:errorlint // io.Reader returns EOF itself; an error that wraps it is a failure
			return total, nil
		}
		if readErr != nil {
			return total, readErr
		}
	}
}

// space returns unused memory of the next part's buffer. Before the first bytes of a part, it
// reserves memory for the part.
func (w *writer) space() ([]byte, error) {
	if w.err != nil {
		return nil, w.err
	}
	if err := w.ctx.Err(); err != nil {
		return nil, w.fail("writing", err)
	}
	if w.taken == 0 && w.mem != nil {
		if err := w.reserve(); err != nil {
			return nil, err
		}
	}
	return w.buf.space(w.partLimit() - w.buf.n), nil
}

// memoryWait is how long an upload waits for the memory of its first part. It is about
// as long as proxies let a connection be idle.
const memoryWait = 50 * time.Second

// reserve takes memory for the whole next part from the memory limit for uploads. If uploads
// took memory in small pieces, many of them could together use up the limit while none had
// enough for its part.
//
// If the limit is reached while the writer's previous part is being sent, reserve doesn't wait
// for other uploads to return memory. It waits until the previous part is sent, and reuses its
// memory. If reserve can't get the memory, the bytes written before can still be saved.
func (w *writer) reserve() error {
	need := w.partLimit()
	if left := w.mem.Expected(); left >= 0 {
		need = min(need, max(left-(w.total-w.size), 0)+segmentSize)
	}
	if !w.loaded {
		need += w.st.TailSize + segmentSize
	}
	if w.flight != nil {
		if w.mem.TryStream(need) {
			w.taken = need
			return nil
		}
		taken, err := w.awaitFlight()
		if err != nil {
			return w.fail("writing", w.blame(w.ctx, err))
		}
		if w.taken = taken; taken >= need {
			return nil
		}
		need -= taken
	}
	taken, err := w.mem.TakeStream(w.ctx, need, memoryWait)
	w.taken += taken
	return err
}

// awaitFlight waits until the part that is being sent has arrived, and returns how much memory
// was reserved for its buffer. The buffer itself isn't reused: if the reader that filled it
// hashes the bytes, it may still use them.
func (w *writer) awaitFlight() (taken int64, err error) {
	s, err := w.arrive(w.ctx)
	return s.taken, err
}

// added counts n new bytes in the buffer, and sends the buffer as a part when it is full. When
// the first bytes have arrived, added also loads the tail; a request without bytes doesn't
// need the tail.
func (w *writer) added(n int) error {
	if n == 0 {
		return nil
	}
	w.buf.add(n)
	w.total += int64(n)
	if !w.loaded {
		if err := w.load(w.ctx); err != nil {
			return w.fail("writing", w.blame(w.ctx, err))
		}
	}
	if w.buf.n < w.partLimit() {
		return nil
	}
	if err := w.sendPart(w.ctx); err != nil {
		return w.fail("writing", w.blame(w.ctx, err))
	}
	return nil
}

// load reads the tail object and puts its bytes before the bytes in the buffer. After that the
// tail object can't become the blob's object any more, but it must stay as long as the
// upload's row names it.
//
// load doesn't return the old buffer to the pool: if the reader that filled it hashes the
// bytes, it may still use the last ones. Go's garbage collector frees this buffer.
func (w *writer) load(ctx context.Context) error {
	r, err := w.s.open(ctx, w.st.Tail, 0, w.st.TailSize)
	if errors.Is(err, blob.ErrNotFound) {
		return fmt.Errorf("%w: object %s is missing", blob.ErrLost, w.st.Tail)
	}
	if err != nil {
		return fmt.Errorf("reading object %s: %w", w.st.Tail, err)
	}
	defer r.Close()
	var all buffer
	for all.n < w.st.TailSize {
		n, err := r.Read(all.space(w.st.TailSize - all.n))
		all.add(n)
		if err != nil && all.n < w.st.TailSize {
			all.free()
			return fmt.Errorf("reading object %s: %w", w.st.Tail, err)
		}
	}
	newBytes := &body{b: &w.buf}
	for {
		n, err := newBytes.Read(all.space(segmentSize))
		all.add(n)
		if errors.Is(err, io.EOF) {
			break
		}
	}
	w.buf, w.loaded, w.st.Left = all, true, true
	return nil
}

// sendPart waits until the previous part has been sent, and then sends the buffer as the next
// part of the multipart upload, in another goroutine. The buffer is freed only when the writer
// next waits for the outcome: a reader that filled the buffer and hashes the bytes may use the
// last of them until the writer reads from it again.
func (w *writer) sendPart(ctx context.Context) error {
	if err := w.landed(ctx); err != nil {
		return err
	}
	if err := w.ready(ctx); err != nil {
		return err
	}
	n, err := w.partNumber(ctx)
	if err != nil {
		return err
	}
	mp, buf, taken, flight := w.st.Multipart, w.buf, w.taken, make(chan sent, 1)
	w.buf, w.taken, w.flight = buffer{}, 0, flight
	go func() {
		outcome := w.s.putPart(w.ctx, mp.Key, mp.ID, n, &buf)
		outcome.buf, outcome.taken = &buf, taken
		flight <- outcome
	}()
	return nil
}

func (s *Store) putPart(ctx context.Context, key, id string, n int, buf *buffer) sent {
	data := &body{b: buf}
	defer data.close()
	p, err := s.core.PutObjectPart(patiently(ctx), s.bucket, s.name(key), id, n, data, buf.n, minio.PutObjectPartOptions{})
	if code(err) == minio.NoSuchUpload {
		err = errUploadGone
	}
	if err != nil {
		err = fmt.Errorf("sending part %d of object %s: %w", n, key, err)
	}
	return sent{part: part{N: n, ETag: p.ETag}, size: buf.n, err: err}
}

// landed waits until the part that is being sent has arrived, adds it to the state, and frees
// its buffer. If no part is being sent, it does nothing.
func (w *writer) landed(ctx context.Context) error {
	if w.flight == nil {
		return nil
	}
	s, err := w.arrive(ctx)
	if s.buf != nil {
		s.buf.free()
		w.mem.Give(s.taken)
	}
	return err
}

// arrive waits until the part that is being sent has arrived, adds it to the state, and
// returns the outcome. If ctx ends before, it returns ctx's error and an outcome without a
// buffer.
func (w *writer) arrive(ctx context.Context) (s sent, err error) {
	select {
	case s = <-w.flight:
		w.flight = nil
		if s.err != nil {
			return s, s.err
		}
		w.st.Multipart.Parts = append(w.st.Multipart.Parts, s.part)
		w.st.Multipart.Size += s.size
		return s, nil
	case <-ctx.Done():
		return s, ctx.Err()
	}
}

// partNumber takes one of the upload's numbers and returns the part number for it. It returns
// ErrTooManyParts if S3 doesn't allow such a high part number.
func (w *writer) partNumber(ctx context.Context) (int, error) {
	n, err := w.number(ctx)
	if err != nil {
		return 0, err
	}
	p := n - w.st.Multipart.At
	if p > maxParts {
		return 0, blob.ErrTooManyParts
	}
	w.partName = n
	return int(p), nil
}

// put stores the buffer as an object.
func (w *writer) put(ctx context.Context) (key string, err error) {
	if key, err = w.objectKey(ctx); err != nil {
		return "", err
	}
	w.made = append(w.made, key) // also if the answer of the service is lost
	data := &body{b: &w.buf}
	defer data.close()
	opts := w.s.putOptions(octetStream)
	sum := ""
	if w.buf.n == 0 {
		// With chunked signing, the request body for an empty object would consist of a
		// signature only, which not every service understands.
		opts.DisableContentSha256, sum = true, emptySHA256
	}
	_, err = w.s.core.PutObject(patiently(ctx), w.s.bucket, w.s.name(key), data, w.buf.n, "", sum, opts)
	if err != nil {
		return "", fmt.Errorf("storing object %s: %w", key, err)
	}
	return key, nil
}

// named returns the keys of the objects that the state in the upload's row names.
func (w *writer) named() (keys []string) {
	var st state
	if len(w.given) == 0 || json.Unmarshal(w.given, &st) != nil {
		return nil
	}
	if st.Tail != "" {
		keys = append(keys, st.Tail)
	}
	if st.Multipart != nil {
		keys = append(keys, st.Multipart.Key)
	}
	return keys
}

// Former implements blob.Writer.
func (w *writer) Former() []string { return w.former }

// Discard implements blob.Writer.
func (w *writer) Discard() { w.kept = false }

// removeTime limits how long Close tries to remove what the writer has stored. What it can't remove
// stays until the upload ends.
const removeTime = 5 * time.Second

// remove removes what this writer has stored, and no row names: the objects that it has put, and its
// multipart upload with the object, if it has begun one.
func (w *writer) remove() error {
	keys, mp := w.made, w.st.Multipart
	w.made = nil
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.ctx), removeTime)
	defer cancel()
	var errs []error
	if mp != nil && !slices.Contains(w.named(), mp.Key) {
		err := w.s.core.AbortMultipartUpload(patiently(ctx), w.s.bucket, w.s.name(mp.Key), mp.ID)
		if err != nil && code(err) != minio.NoSuchUpload {
			errs = append(errs, fmt.Errorf("aborting the multipart upload of object %s: %w", mp.Key, err))
		}
		keys = append(keys, mp.Key) // it may have been completed
	}
	if len(keys) > 0 {
		errs = append(errs, w.s.Delete(ctx, keys))
	}
	return errors.Join(errs...)
}

const emptySHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

// Leftovers implements blob.Writer.
func (w *writer) Leftovers() bool { return w.st.Left }

// Close implements blob.Writer. It cancels the sending of a part, waits until the goroutine
// has ended, and releases all memory.
func (w *writer) Close() error {
	w.cancel()
	if w.flight != nil {
		s := <-w.flight
		s.buf.free()
		w.mem.Give(s.taken)
		w.flight = nil
	}
	w.buf.free()
	w.mem.Give(w.taken)
	w.taken = 0
	_ = w.fail("writing to", errEnded)
	if w.closed || w.kept {
		return nil
	}
	w.closed = true
	return w.remove()
}
