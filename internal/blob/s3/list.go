package s3

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"strings"

	"github.com/minio/minio-go/v7"

	"github.com/purser-registry/purser/internal/blob"
)

// Stat implements blob.Store.
func (s *Store) Stat(ctx context.Context, key string) (blob.Object, error) {
	o, err := s.stat(ctx, key)
	if err != nil && !errors.Is(err, blob.ErrNotFound) {
		err = fmt.Errorf("looking at object %s: %w", key, err)
	}
	return o, err
}

// stat returns the size and time of an object. The service's answer to a HEAD request has no
// body, so a missing object looks the same as a missing bucket. Therefore, if the object seems
// to be missing, stat also asks whether the bucket exists.
func (s *Store) stat(ctx context.Context, key string) (blob.Object, error) {
	info, err := s.core.StatObject(patiently(ctx), s.bucket, s.name(key), minio.StatObjectOptions{})
	if code(err) == minio.NoSuchKey {
		if exists, lookErr := s.core.BucketExists(patiently(ctx), s.bucket); lookErr == nil && !exists {
			err = minio.ErrorResponse{Code: minio.NoSuchBucket, BucketName: s.bucket, StatusCode: http.StatusNotFound,
				Message: "the bucket does not exist"}
		}
	}
	if err != nil {
		return blob.Object{}, notFound(err)
	}
	return blob.Object{Key: key, Size: info.Size, Modified: info.LastModified}, nil
}

// List implements blob.Store. It lists with the delimiter "/", so objects whose names have
// further slashes cost no requests, however many they are.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[blob.Object, error] {
	return func(yield func(blob.Object, error) bool) {
		last := ""
		for info := range s.core.ListObjectsIter(patiently(ctx), s.bucket, minio.ListObjectsOptions{Prefix: s.name(prefix)}) {
			if info.Err != nil {
				yield(blob.Object{}, fmt.Errorf("listing objects: %w", info.Err))
				return
			}
			key := strings.TrimPrefix(info.Key, s.prefix)
			if _, ours := blob.UploadOf(key); !ours {
				continue
			}
			if key <= last {
				yield(blob.Object{}, fmt.Errorf("listing objects: the S3 service lists %s after %s, not in the order of keys (directory buckets don't)", key, last))
				return
			}
			last = key
			if !yield(blob.Object{Key: key, Size: info.Size, Modified: info.LastModified}, nil) {
				return
			}
		}
		// minio ends a listing without an error when the context ends, although objects may be
		// missing from it. Therefore List returns the context's error.
		if err := ctx.Err(); err != nil {
			yield(blob.Object{}, fmt.Errorf("listing objects: %w", err))
		}
	}
}

// Unfinished implements blob.Store. On MinIO it returns no multipart uploads, since MinIO
// lists them only by the full name of their object.
func (s *Store) Unfinished(ctx context.Context, prefix string) iter.Seq2[blob.Unfinished, error] {
	return func(yield func(blob.Unfinished, error) bool) {
		for u, err := range s.multiparts(ctx, s.name(prefix)) {
			if err != nil {
				yield(blob.Unfinished{}, fmt.Errorf("listing multipart uploads: %w", err))
				return
			}
			base, ours := blob.UploadOf(strings.TrimPrefix(u.Key, s.prefix))
			if ours && !yield(blob.Unfinished{Base: base, Began: u.Initiated}, nil) {
				return
			}
		}
	}
}

// multiparts returns all multipart uploads whose object's name begins with prefix.
func (s *Store) multiparts(ctx context.Context, prefix string) iter.Seq2[minio.ObjectMultipartInfo, error] {
	return func(yield func(minio.ObjectMultipartInfo, error) bool) {
		keyMarker, idMarker := "", ""
		for {
			page, err := s.core.ListMultipartUploads(patiently(ctx), s.bucket, prefix, keyMarker, idMarker, "", 1000)
			if err != nil {
				yield(minio.ObjectMultipartInfo{}, err)
				return
			}
			for _, u := range page.Uploads {
				// Some services may not filter by prefix, and a multipart upload that is
				// aborted can't be restored. So the prefix is checked here too.
				if strings.HasPrefix(u.Key, prefix) && !yield(u, nil) {
					return
				}
			}
			if !page.IsTruncated || page.NextKeyMarker == "" {
				return
			}
			keyMarker, idMarker = page.NextKeyMarker, page.NextUploadIDMarker
		}
	}
}
