package s3

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/minio/minio-go/v7"

	"github.com/purser-registry/purser/internal/blob"
)

// Open implements blob.Store.
func (s *Store) Open(ctx context.Context, key string, off, length int64) (io.ReadCloser, error) {
	o, err := s.open(ctx, key, off, length)
	if err != nil {
		return nil, fmt.Errorf("opening object %s: %w", key, err)
	}
	return o, nil
}

func (s *Store) open(ctx context.Context, key string, off, length int64) (io.ReadCloser, error) {
	if off < 0 || length < -1 {
		return nil, fmt.Errorf("invalid range: offset %d, length %d", off, length)
	}
	var opts minio.GetObjectOptions
	switch {
	case length == 0: // S3 can't return an empty range
		_, err := s.stat(ctx, key)
		return io.NopCloser(strings.NewReader("")), err
	case length > 0:
		if err := opts.SetRange(off, off+length-1); err != nil {
			return nil, err
		}
	case off > 0:
		if err := opts.SetRange(off, 0); err != nil {
			return nil, err
		}
	}
	body, info, header, err := s.core.GetObject(patiently(ctx), s.bucket, s.name(key), opts)
	if code(err) == minio.InvalidRange {
		return s.openAtEnd(ctx, key, off, length)
	}
	if err != nil {
		return nil, notFound(err)
	}
	if off > 0 && header.Get("Content-Range") == "" {
		body.Close()
		return nil, errors.New("the S3 service doesn't answer range requests")
	}
	if length == -1 {
		length = info.Size // the length of this answer, not of the object
	}
	return &object{body: body, rest: length}, nil
}

// openAtEnd opens a range that begins at or behind the object's end, which S3 refuses. It
// returns a reader without bytes, which ends with io.ErrUnexpectedEOF if `length` is positive.
// If `off` is behind the end and `length` is -1, openAtEnd itself returns io.ErrUnexpectedEOF.
func (s *Store) openAtEnd(ctx context.Context, key string, off, length int64) (io.ReadCloser, error) {
	o, err := s.stat(ctx, key)
	if err != nil {
		return nil, err
	}
	if size := o.Size; off > size && length == -1 {
		return nil, fmt.Errorf("offset %d is beyond the object's %d bytes: %w", off, size, io.ErrUnexpectedEOF)
	}
	return &object{body: io.NopCloser(strings.NewReader("")), rest: max(length, 0)}, nil
}

// object reads the body of the service's answer and checks that it has the expected length.
type object struct {
	body io.ReadCloser
	rest int64
}

func (o *object) Read(p []byte) (int, error) {
	if o.rest == 0 {
		return 0, io.EOF
	}
	n, err := o.body.Read(p[:min(int64(len(p)), o.rest)])
	o.rest -= int64(n)
	switch {
	case errors.Is(err, io.EOF) && o.rest > 0:
		err = io.ErrUnexpectedEOF
	case err == nil && o.rest == 0:
		err = io.EOF
	}
	return n, err
}

func (o *object) Close() error { return o.body.Close() }

// notFound converts S3's error for a missing object to blob.ErrNotFound. It returns every
// other error unchanged, also the error for a missing bucket.
func notFound(err error) error {
	if code(err) == minio.NoSuchKey {
		return blob.ErrNotFound
	}
	return err
}

const maxDelete = 1000 // keys in one multi-object delete

// Delete implements blob.Store.
func (s *Store) Delete(ctx context.Context, keys []string) error {
	var errs []error
	for len(keys) > 0 {
		n := min(len(keys), maxDelete)
		errs = append(errs, s.deleteBatch(ctx, keys[:n])...)
		keys = keys[n:]
	}
	return errors.Join(errs...)
}

// deleteBatch deletes up to maxDelete objects with one request. It returns one error for each
// object of which the service's answer doesn't confirm the deletion.
func (s *Store) deleteBatch(ctx context.Context, keys []string) []error {
	objects := func(yield func(minio.ObjectInfo) bool) {
		for _, key := range keys {
			if !yield(minio.ObjectInfo{Key: s.name(key)}) {
				return
			}
		}
	}
	whole := errors.New("the S3 service didn't confirm it")
	results, err := s.core.RemoveObjectsWithIter(patiently(ctx), s.bucket, objects, minio.RemoveObjectsOptions{})
	outcome := make(map[string]error, len(keys))
	if err != nil {
		whole = err
	} else {
		for r := range results {
			if r.ObjectName == "" {
				whole = r.Err
			}
			outcome[r.ObjectName] = r.Err
		}
	}
	if err := ctx.Err(); err != nil {
		whole = err
	}
	var errs []error
	for _, key := range keys {
		err, ok := outcome[s.name(key)]
		if !ok {
			err = whole
		}
		if err != nil && code(err) != minio.NoSuchKey {
			errs = append(errs, &blob.DeleteError{Key: key, Err: err})
		}
	}
	return errs
}

// DeleteUpload implements blob.Store. It aborts multipart uploads before it deletes objects.
// So if a request that has lost the upload (fenced) completes a multipart upload just before
// it is aborted, the object exists when DeleteUpload lists the objects, and is deleted too.
//
// MinIO lists multipart uploads only by the full name of their object, so on MinIO
// DeleteUpload doesn't find them. MinIO removes abandoned multipart uploads itself, by default
// after 24 hours.
func (s *Store) DeleteUpload(ctx context.Context, base, keep string) error {
	if err := blob.CheckBase(base); err != nil {
		return fmt.Errorf("deleting an upload's objects: %w", err)
	}
	if err := s.abort(ctx, s.name(base+"-")); err != nil {
		return fmt.Errorf("aborting multipart uploads of upload %s: %w", base, err)
	}
	var keys []string
	list := minio.ListObjectsOptions{Prefix: s.name(base + "-"), Recursive: true}
	for o := range s.core.ListObjectsIter(patiently(ctx), s.bucket, list) {
		if o.Err != nil {
			return fmt.Errorf("listing objects of upload %s: %w", base, o.Err)
		}
		if key := strings.TrimPrefix(o.Key, s.prefix); key != keep {
			keys = append(keys, key)
		}
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("listing objects of upload %s: %w", base, err)
	}
	return s.Delete(ctx, keys)
}

// abort aborts all multipart uploads whose object's name begins with prefix.
func (s *Store) abort(ctx context.Context, prefix string) error {
	for u, err := range s.multiparts(ctx, prefix) {
		if err != nil {
			return err
		}
		err := s.core.AbortMultipartUpload(patiently(ctx), s.bucket, u.Key, u.UploadID)
		if err != nil && code(err) != minio.NoSuchUpload {
			return err
		}
	}
	return nil
}
