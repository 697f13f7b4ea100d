package distribution

import (
	"bytes"
	"context"
	"encoding"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/limit"
	"github.com/purser-registry/purser/internal/oci"
)

// session appends the body of one request to an upload. It hashes the bytes as they arrive.
// While the whole upload is at most catalog.MaxTail bytes long, the session keeps its bytes for
// the upload's row in the table uploads; otherwise it writes them to the store. The answer
// acknowledges only bytes that are saved. When another request has taken over the upload, the
// session can't save anything any more.
//
// If this process remembers a copy of the upload's row, the session begins with this copy,
// which saves a query. If the copy is outdated, the session's first write to the row fails. A
// session writes to the row before it reads more of the body than the bytes it keeps in memory
// (uploadBody.first). So when the write fails, a new session can begin with the row from the
// database and with these bytes.
type session struct {
	api  *API
	u    catalog.Upload
	d    oci.Digest // of the blob that the upload is to become; zero: not known yet
	in   *uploadBody
	hash hash.Hash
	w    blob.Writer
	// tail has the whole content of the upload, as long as this content has at most
	// catalog.MaxTail bytes and so fits in the upload's row.
	tail []byte
	// claimed says that this request has claimed the upload's row, so that older requests for
	// the upload can't save anything any more.
	claimed bool
	// room is how many bytes the upload may have by its namespace's quota, as far as the
	// request has asked.
	room int64
	// promise is nil until the request has claimed the upload. settled says that the upload's row
	// was saved or committed, so nothing is promised any more.
	promise  *promise
	promised bool
	settled  bool
	// beyond says that the request has got room beyond the limit of the quota, since the namespace
	// has the blob already. If it fails, it ends the upload.
	beyond bool
}

// receive appends the request's body to the upload and saves it. If the client disconnects in
// the middle of the body, receive saves the bytes that have arrived, so that the client can
// continue after them, and returns an error.
func (a *API) receive(c *call) (catalog.Upload, error) {
	var saved catalog.Upload
	err := a.onUpload(c, oci.Digest{}, func(ctx context.Context, ss *session) error {
		small, err := ss.fill(ctx)
		if err != nil {
			return err
		}
		saved, err = ss.save(ctx, small)
		if err != nil {
			return err
		}
		if end := ss.in.Received + saved.Size - ss.in.skip; ss.in.skip > ss.in.Received {
			saved.Size = end // the client has sent again only a part of what it had sent
		}
		return ss.in.LostError()
	})
	return saved, err
}

// commit appends the request's body, which may be empty, to the upload, and turns the upload
// into the blob with the digest `d`. If the content has another digest, commit returns
// DIGEST_INVALID, and the upload stays as it was before the request. But an upload that only has room
// because the namespace has the blob already ends with a request that fails (see session.beyond).
func (a *API) commit(c *call, d oci.Digest) error {
	return a.onUpload(c, d, func(ctx context.Context, ss *session) error {
		small, err := ss.fill(ctx)
		if err != nil {
			return err
		}
		if ss.in.Lost != nil && ss.beyond {
			return ss.in.LostError()
		}
		if ss.in.Lost != nil {
			_, err := ss.save(ctx, small)
			return errors.Join(ss.in.LostError(), err)
		}
		same := d.Algorithm() == ss.u.Algorithm
		if same {
			if actual := oci.FromHash(d.Algorithm(), ss.hash); actual != d {
				return digestMismatch(d, actual)
			}
		}
		if small {
			if !same { // the whole content is in memory
				h := d.Algorithm().New()
				h.Write(ss.tail)
				if actual := oci.FromHash(d.Algorithm(), h); actual != d {
					return digestMismatch(d, actual)
				}
				same = true
			}
			if err := ss.storeTail(ctx); err != nil {
				return err
			}
		}
		key, err := ss.w.Finish(ctx)
		if err != nil {
			return fmt.Errorf("finishing upload %s: %w", ss.u.ID, err)
		}
		if !same {
			if err := a.verify(ctx, key, d); err != nil {
				ss.w.Discard()
				return err
			}
		}
		err = a.catalog.CommitUpload(ctx, ss.u, d, key, ss.w.Leftovers())
		ss.settled = err == nil
		if _, refused := errors.AsType[*oci.Error](err); refused {
			// CommitUpload has changed nothing. Maybe the upload's row is gone; then no worker
			// would ever delete the object that this request has just written. Otherwise each
			// repeat of the request would leave another one, and no quota would count it. No other
			// request uses the object's storage key.
			ss.w.Discard()
		}
		return err
	})
}

// onUpload calls `work` with a session on the upload that the request's path names. `d` is the
// digest of the blob that the upload is to become, or zero if the request doesn't finish the
// upload. If `work` fails with an error for the client, and the session began with this
// process's copy of the upload's row, the copy may be outdated. The row may also have changed
// since it was read: a client that repeats a request may be faster than the request that it
// repeats. onUpload then calls `work` once more with a session on the row from the database,
// unless `work` has saved bytes of the request's body, or has read bytes of it that aren't kept
// in memory.
func (a *API) onUpload(c *call, d oci.Digest, work func(ctx context.Context, ss *session) error) error {
	// This context doesn't end when the client disconnects, because the bytes that have arrived
	// by then must still be saved.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.r.Context()), a.server.MaxRequest())
	defer cancel()
	in := a.newUploadBody(c)
	ctx = limit.WithLease(ctx, in.Lease)
	u, remembered, err := a.upload(c)
	for again := true; ; again = false {
		if err == nil {
			err = c.checkChunk(u, in)
		}
		if err == nil {
			err = a.quotas.AdmitBlob(ctx, c.name, u.ID, d, u.Size+max(in.want, in.length(), 0))
		}
		if err == nil {
			err = a.session(ctx, u, d, in, work)
		}
		outdated := remembered || errors.Is(err, catalog.ErrUploadMoved)
		if _, refused := errors.AsType[*oci.Error](err); !refused || !outdated || !again || in.streaming || in.saved {
			return err
		}
		u, err = a.catalog.Upload(ctx, c.name, u.UploadID())
	}
}

func (a *API) session(ctx context.Context, u catalog.Upload, d oci.Digest, in *uploadBody, work func(ctx context.Context, ss *session) error) error {
	if u.Size == 0 && !d.IsZero() {
		u.Algorithm, u.HashState = d.Algorithm(), nil
	}
	h, err := resumeHash(u)
	if err != nil {
		return err
	}
	ss := &session{api: a, u: u, d: d, in: in, hash: h}
	defer ss.close(ctx)
	return work(ctx, ss)
}

func resumeHash(u catalog.Upload) (hash.Hash, error) {
	h := u.Algorithm.New()
	if u.HashState == nil {
		h.Write(u.Tail)
		return h, nil
	}
	if err := h.(encoding.BinaryUnmarshaler).UnmarshalBinary(u.HashState); err != nil {
		return nil, fmt.Errorf("upload %s: reading its hash: %w", u.ID, err)
	}
	return h, nil
}

// verify reads the object with the storage key `key` and returns an error unless its digest is
// `d`. This is necessary if the upload was hashed by one algorithm while it arrived, and `d`
// has another algorithm.
func (a *API) verify(ctx context.Context, key string, d oci.Digest) error {
	r, err := a.store.Open(ctx, key, 0, -1)
	if err != nil {
		return err
	}
	defer r.Close() //nolint:errcheck // only read
	h := d.Algorithm().New()
	if _, err := io.Copy(struct{ io.Writer }{h}, r); err != nil {
		return blob.MarkRead(ctx, a.store, key, err)
	}
	if actual := oci.FromHash(d.Algorithm(), h); actual != d {
		return digestMismatch(d, actual)
	}
	return nil
}

// fill reads the request's body. If the whole upload, with this body, is at most
// catalog.MaxTail bytes long, fill puts its bytes in ss.tail and returns true. Otherwise it
// writes them to the store and returns false.
func (ss *session) fill(ctx context.Context) (small bool, err error) {
	first, whole := ss.in.first()
	first = first[min(int64(len(first)), ss.in.skip):]
	if ss.in.skip == 0 {
		ss.u.LastFrom, ss.u.LastHead = ss.u.Size, nil
	}
	if ss.u.StoreState == nil && whole && len(ss.u.Tail)+len(first) <= catalog.MaxTail {
		ss.hash.Write(first)
		ss.u.Size += int64(len(first))
		ss.tail = append(ss.u.Tail[:len(ss.u.Tail):len(ss.u.Tail)], first...)
		return true, ss.in.checkLength()
	}
	if err := ss.store(ctx, ss.u.Tail, first); err != nil {
		return false, err
	}
	return false, ss.in.checkLength()
}

// storeTail writes the bytes of a small upload to the store. Until now they were only in memory
// or in the upload's row.
func (ss *session) storeTail(ctx context.Context) error {
	ss.in.Lease.Expect(int64(len(ss.tail)))
	if err := ss.open(ctx, false, catalog.UploadNeed{Bytes: ss.u.Size, Digest: ss.d}); err != nil {
		return err
	}
	return ss.hold(ss.tail)
}

// hold writes the bytes `p` of the upload to the store without hashing them: ss.hash includes
// them already.
func (ss *session) hold(p []byte) error {
	if len(p) > 0 {
		if _, err := ss.w.Write(p); err != nil {
			return fmt.Errorf("storing upload %s: %w", ss.u.ID, err)
		}
	}
	ss.u.Tail = nil
	return nil
}

// store writes an upload to the store in three parts: the bytes from the upload's row (`held`),
// the beginning of the request's body (`first`), and the rest of the body.
func (ss *session) store(ctx context.Context, held, first []byte) error {
	length := ss.in.length()
	if length >= 0 {
		ss.in.Lease.Expect(int64(len(held)) + length)
	}
	need := catalog.UploadNeed{Bytes: ss.u.Size + length, Digest: ss.d}
	if length < 0 {
		need.Bytes, need.Ahead = ss.u.Size+int64(len(first)), admitEvery
	}
	if err := ss.open(ctx, true, need); err != nil {
		return err
	}
	if err := ss.hold(held); err != nil {
		return err
	}
	ss.in.streaming = true
	ss.in.discard()
	// The store writes in a goroutine of its own, which changes ss.u.Ticket when it begins an object.
	u := ss.u
	arriving := &admittedReader{r: ss.in, size: u.Size + int64(len(first)), room: ss.room, promise: ss.promise, admit: func(size int64) (int64, error) {
		more := catalog.UploadNeed{Bytes: max(size, need.Bytes), Digest: ss.d}
		if length < 0 {
			more.Bytes, more.Ahead = size, admitEvery
		}
		room, beyond, err := ss.api.catalog.ReserveUpload(ctx, u, more)
		ss.beyond = ss.beyond || beyond
		return room, err
	}}
	body := newHashingReader(io.MultiReader(bytes.NewReader(first), arriving), ss.hash)
	n, err := ss.w.ReadFrom(body)
	body.finish()
	ss.u.Size += n
	if full, ok := errors.AsType[*limit.FullError](err); ok {
		ss.in.Lost = full // the bytes that the store has taken are saved
	}
	if ss.in.Lost != nil { // the client failed, not the store
		return nil
	}
	if err != nil {
		return fmt.Errorf("storing upload %s: %w", ss.u.ID, err)
	}
	return nil
}

// open opens a writer of the store for the upload. Normally open claims the upload's row for
// this request, so that older requests can't save anything any more, and reserves the number
// that the name of the next object will contain.
//
// For a small upload, open doesn't claim the row if the upload has a ticket, which is an object
// number that was reserved when the row was inserted or last saved. This is safe: no other
// request uses an object name with this number, and CommitUpload fails if the row has changed.
// The request can then start over, since its bytes are still in memory. The bytes of a long
// body (`stream` is true) aren't kept in memory, so open always claims the row for such a body.
func (ss *session) open(ctx context.Context, stream bool, need catalog.UploadNeed) error {
	stored := int64(0)
	if ss.u.StoreState != nil {
		stored = ss.u.Size - int64(len(ss.u.Tail))
	}
	ticket := ss.u.Ticket
	claim := func(ctx context.Context) (int64, error) {
		if ticket != catalog.NoTicket && !stream {
			return ticket, nil
		}
		taken := 0
		if ss.u.StoreState == nil && ticket == catalog.NoTicket {
			taken = 1
		}
		began := time.Now()
		claimed, err := ss.api.catalog.ClaimUpload(ctx, ss.u, taken, need)
		if err != nil {
			return 0, err
		}
		next := claimed.Next
		ss.u.Attempt, ss.room, ss.claimed, ss.promised = claimed.Attempt, claimed.Room, true, claimed.Promised
		ss.beyond = claimed.Beyond
		ss.promise = ss.api.promise(ctx, ss.u, claimed.Promised, began)
		if taken > 0 {
			ticket = next
		}
		if ticket != catalog.NoTicket && next == ticket+1 {
			return ticket, nil // the ticket is still the newest number, and unused
		}
		return next, nil
	}
	numbers := func(ctx context.Context, n int) (int64, error) {
		if n == 1 && ticket != catalog.NoTicket {
			first := ticket
			ticket, ss.u.Ticket = catalog.NoTicket, catalog.NoTicket
			return first, nil
		}
		return ss.api.catalog.UploadNumbers(ctx, ss.u, n)
	}
	w, err := ss.api.store.Resume(ctx, ss.u.StorageKey, ss.u.StoreState, stored, claim, numbers)
	if err != nil {
		return err
	}
	ss.w = w
	return nil
}

// save makes the bytes that have arrived durable, in the upload's row or in the store. It then
// updates the row, remembers the row for the next request, and returns the upload as it is now.
// It does nothing if no byte has arrived.
func (ss *session) save(ctx context.Context, small bool) (catalog.Upload, error) {
	if ss.in.fresh() == 0 {
		return ss.u, nil
	}
	if ss.u.LastFrom+ss.in.Received == ss.u.Size { // the body begins there, also if it is a repeat
		ss.u.LastHead = ss.in.head
	}
	if small {
		ss.u.Tail = ss.tail
	} else {
		state, err := ss.w.Save(ctx)
		if err != nil {
			return ss.u, fmt.Errorf("saving upload %s: %w", ss.u.ID, err)
		}
		ss.u.StoreState = state
		if ss.u.HashState, err = ss.hash.(encoding.BinaryMarshaler).MarshalBinary(); err != nil {
			return ss.u, fmt.Errorf("saving the hash of upload %s: %w", ss.u.ID, err)
		}
	}
	u, err := ss.api.catalog.SaveUpload(ctx, ss.u)
	if err == nil {
		ss.in.saved, ss.settled = true, true
		ss.api.uploads.remember(u)
	}
	if ss.w == nil {
		return u, err
	}
	if errors.Is(err, catalog.ErrUploadMoved) {
		ss.w.Discard()
	}
	if former := ss.w.Former(); err == nil && len(former) > 0 {
		if err := ss.api.store.Delete(ctx, former); err != nil {
			ss.api.log.WarnContext(ctx, "an upload keeps bytes that it needs no more until it ends", "upload", ss.u.ID, "error", err)
		}
	}
	return u, err
}

// close ends the session, and with it the promise of room, or the upload if its room is beyond the
// limit.
func (ss *session) close(ctx context.Context) {
	if ss.w != nil {
		if err := ss.w.Close(); err != nil { // everything that matters is saved or finished
			ss.api.log.InfoContext(ctx, "what an upload's request has stored stays until the upload ends", "upload", ss.u.ID, "error", err)
		}
	}
	if ss.promise == nil {
		return
	}
	ss.promise.end()
	if ss.settled || !ss.promised || ss.promise.lost.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), renewEvery)
	defer cancel()
	end := ss.api.catalog.ReleaseUpload
	if ss.beyond {
		end = ss.api.catalog.AbandonUpload
	}
	if err := end(ctx, ss.u); err != nil {
		ss.api.log.WarnContext(ctx, "an upload keeps the room that it was promised for a while", "upload", ss.u.ID, "error", err)
	}
}
