package s3

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/minio/minio-go/v7"

	"github.com/purser-registry/purser/internal/blob"
)

// Save implements blob.Writer.
func (w *writer) Save(ctx context.Context) (blob.State, error) {
	if w.err != nil {
		return nil, w.err
	}
	if w.total == w.size {
		_ = w.fail("writing to", errEnded)
		return w.given, nil
	}
	st, err := w.save(ctx)
	if err != nil {
		return nil, w.fail("saving", w.blame(ctx, err))
	}
	w.kept = true
	for _, key := range w.named() {
		if key != w.st.Tail && (w.st.Multipart == nil || key != w.st.Multipart.Key) {
			w.former = append(w.former, key)
		}
	}
	_ = w.fail("writing to", errEnded)
	return st, nil
}

func (w *writer) save(ctx context.Context) (blob.State, error) {
	if err := w.landed(ctx); err != nil {
		return nil, err
	}
	if w.st.Multipart != nil && w.buf.n >= minPartSize {
		if err := w.sendPart(ctx); err != nil {
			return nil, err
		}
		if err := w.landed(ctx); err != nil {
			return nil, err
		}
	}
	w.st.Tail, w.st.TailSize = "", 0
	if w.buf.n > 0 {
		key, err := w.put(ctx)
		if err != nil {
			return nil, err
		}
		w.st.Tail, w.st.TailSize = key, w.buf.n
		if w.st.Multipart != nil {
			w.st.Left = true // with a multipart upload, the tail object can't become the blob
		}
	}
	return json.Marshal(w.st)
}

// Finish implements blob.Writer.
func (w *writer) Finish(ctx context.Context) (string, error) {
	if w.err != nil {
		return "", w.err
	}
	key, err := w.finish(ctx)
	if err != nil {
		return "", w.fail("finishing", w.blame(ctx, err))
	}
	w.kept = true
	_ = w.fail("writing to", errEnded)
	return key, nil
}

func (w *writer) finish(ctx context.Context) (string, error) {
	if err := w.landed(ctx); err != nil {
		return "", err
	}
	if w.st.Multipart != nil {
		return w.finishMultipart(ctx)
	}
	if w.st.Tail != "" && w.total == w.size {
		return w.st.Tail, nil // the tail object is the blob
	}
	return w.put(ctx)
}

func (w *writer) finishMultipart(ctx context.Context) (string, error) {
	if w.st.Multipart.Suspect && w.total == w.size {
		// An earlier request may have finished the upload, and then failed to commit it. Its
		// object begins with the acknowledged bytes. If the object isn't longer, it has
		// exactly these bytes and can be used.
		stored, err := w.s.stat(ctx, w.st.Multipart.Key)
		if err == nil && stored.Size == w.size {
			return w.st.Multipart.Key, nil
		}
		if err != nil && !errors.Is(err, blob.ErrNotFound) {
			return "", fmt.Errorf("looking for object %s: %w", w.st.Multipart.Key, err)
		}
	}
	if !w.loaded {
		if err := w.load(ctx); err != nil {
			return "", err
		}
	}
	if w.buf.n > 0 {
		if err := w.sendPart(ctx); err != nil {
			return "", err
		}
		if err := w.landed(ctx); err != nil {
			return "", err
		}
	} else if err := w.ready(ctx); err != nil {
		return "", err
	}
	if !w.took {
		// This request (attempt) hasn't taken a number since it claimed the upload. It takes a
		// number here for two reasons. First, this fails if a newer request has claimed the
		// upload. Second, if this request doesn't save, the next request's claim shows that a
		// number was taken, so the next request knows that this one may have completed the
		// multipart upload.
		if _, err := w.number(ctx); err != nil {
			return "", err
		}
	}
	mp := w.st.Multipart
	stored, err := w.s.complete(ctx, mp)
	if err != nil {
		return "", err
	}
	if stored != w.total {
		return "", fmt.Errorf("%w: object %s has %d of %d", blob.ErrLost, mp.Key, stored, w.total)
	}
	return mp.Key, nil
}

// complete completes a multipart upload and returns the size of its object. If the S3 request
// fails, the multipart upload may be complete all the same: an earlier request may have
// completed it, or only the service's answer was lost. So complete then looks for the object.
func (s *Store) complete(ctx context.Context, mp *multipart) (int64, error) {
	parts := make([]minio.CompletePart, len(mp.Parts))
	for i, p := range mp.Parts {
		parts[i] = minio.CompletePart{PartNumber: p.N, ETag: p.ETag}
	}
	_, err := s.core.CompleteMultipartUpload(patiently(ctx), s.bucket, s.name(mp.Key), mp.ID, parts,
		minio.PutObjectOptions{})
	if err == nil {
		return mp.Size, nil
	}
	stored, statErr := s.stat(ctx, mp.Key)
	if statErr == nil {
		return stored.Size, nil
	}
	if c := code(err); (c == minio.NoSuchUpload || c == minio.InvalidPart) && errors.Is(statErr, blob.ErrNotFound) {
		err = errUploadGone
	}
	return 0, fmt.Errorf("completing object %s: %w", mp.Key, err)
}

// ready makes sure that the writer has a multipart upload that no other request to the upload
// can complete.
func (w *writer) ready(ctx context.Context) error {
	switch mp := w.st.Multipart; {
	case mp == nil:
		return w.create(ctx)
	case mp.Suspect:
		return w.takeOver(ctx)
	}
	return nil
}

// create begins a multipart upload.
func (w *writer) create(ctx context.Context) error {
	at, err := w.number(ctx)
	if err != nil {
		return err
	}
	key := w.key(at)
	id, err := w.s.core.NewMultipartUpload(patiently(ctx), w.s.bucket, w.s.name(key), w.s.putOptions(octetStream))
	if err != nil {
		return fmt.Errorf("beginning multipart upload of object %s: %w", key, err)
	}
	w.st.Multipart = &multipart{Key: key, ID: id, At: at}
	return nil
}

// takeOver replaces the old multipart upload by a new one that begins with the same
// acknowledged bytes. It is called if an earlier request, which has lost the upload to this
// request (fenced), may be about to complete the old multipart upload. S3 can copy bytes only
// from an object and not from an unfinished multipart upload, so takeOver first completes the
// old multipart upload itself. Whether this request or the earlier one completes it, the
// resulting object begins with the acknowledged bytes, and no request can change it any more.
func (w *writer) takeOver(ctx context.Context) error {
	old := w.st.Multipart
	if _, err := w.number(ctx); err != nil { // also checks that this attempt isn't fenced
		return err
	}
	stored, err := w.s.complete(ctx, old)
	if err != nil {
		return err
	}
	if stored < old.Size {
		return fmt.Errorf("%w: object %s has %d of %d", blob.ErrLost, old.Key, stored, old.Size)
	}
	w.st.Left = true
	if err := w.create(ctx); err != nil {
		return err
	}
	return w.copyParts(ctx, old.Key, old.Size)
}

// copyStep is how many bytes the service copies in one CopyObjectPart request, at most: so
// many that few requests are needed, and so few that the service answers within the time
// limit.
const copyStep = 1 << 30

// copyParts lets the service copy the first `size` bytes of the object `key` into the first
// parts of the writer's new multipart upload. The parts have about equal sizes, so that none
// is below S3's minimum.
func (w *writer) copyParts(ctx context.Context, key string, size int64) error {
	mp := w.st.Multipart
	count := (size + copyStep - 1) / copyStep
	for i := range count {
		from, to := size*i/count, size*(i+1)/count
		n, err := w.partNumber(ctx)
		if err != nil {
			return err
		}
		p, err := w.s.core.CopyObjectPart(patiently(ctx), w.s.bucket, w.s.name(key), w.s.bucket, w.s.name(mp.Key),
			mp.ID, n, from, to-from, nil)
		if err != nil {
			return fmt.Errorf("copying object %s to part %d of object %s: %w", key, n, mp.Key, err)
		}
		mp.Parts = append(mp.Parts, part{N: n, ETag: p.ETag})
		mp.Size += to - from
	}
	return nil
}
