package s3

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"

	"github.com/minio/minio-go/v7"

	"github.com/purser-registry/purser/internal/blob"
)

var _ blob.Putter = (*Store)(nil)

// Put implements blob.Putter. It sends an object above the part size in parts, one after the
// other.
func (s *Store) Put(ctx context.Context, key string, size int64, r io.Reader) error {
	part := s.partSize
	for size > part*maxParts {
		part *= 2
	}
	o := s.putOptions(octetStream)
	o.PartSize, o.DisableContentSha256 = uint64(part), true
	_, err := s.core.Client.PutObject(patiently(ctx), s.bucket, s.name(key), &exactReader{r, size}, size, o)
	if err != nil {
		return fmt.Errorf("storing object %s: %w", key, err)
	}
	return nil
}

// exactReader returns the first `rest` bytes of r, and fails if r has fewer.
type exactReader struct {
	r    io.Reader
	rest int64
}

func (e *exactReader) Read(p []byte) (int, error) {
	if e.rest == 0 {
		return 0, io.EOF
	}
	n, err := e.r.Read(p[:min(int64(len(p)), e.rest)])
	if e.rest -= int64(n); errors.Is(err, io.EOF) && e.rest > 0 {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// All returns all objects whose keys begin with `prefix`, also those that List leaves out,
// sorted by the bytes of their keys. If the listing fails, the last element is the error.
func (s *Store) All(ctx context.Context, prefix string) iter.Seq2[blob.Object, error] {
	return func(yield func(blob.Object, error) bool) {
		for info := range s.core.ListObjectsIter(patiently(ctx), s.bucket, minio.ListObjectsOptions{Prefix: s.name(prefix), Recursive: true}) {
			if info.Err != nil {
				yield(blob.Object{}, fmt.Errorf("listing objects: %w", info.Err))
				return
			}
			o := blob.Object{Key: strings.TrimPrefix(info.Key, s.prefix), Size: info.Size, Modified: info.LastModified}
			if !yield(o, nil) {
				return
			}
		}
		// See List.
		if err := ctx.Err(); err != nil {
			yield(blob.Object{}, fmt.Errorf("listing objects: %w", err))
		}
	}
}
