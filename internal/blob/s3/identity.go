package s3

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"

	"github.com/minio/minio-go/v7"

	"github.com/purser-registry/purser/internal/blob"
)

// Identity implements blob.Store.
func (s *Store) Identity(ctx context.Context) (string, error) {
	body, _, _, err := s.core.GetObject(patiently(ctx), s.bucket, s.name(blob.IdentityKey), minio.GetObjectOptions{})
	if code(err) == minio.NoSuchKey {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("reading the store's identity: %w", err)
	}
	defer body.Close()
	b, err := io.ReadAll(io.LimitReader(body, blob.MaxIdentity))
	if err != nil {
		return "", fmt.Errorf("reading the store's identity: %w", err)
	}
	return blob.DecodeIdentity(b)
}

// SetIdentity implements blob.Store. If several callers set an identity at the same time, the
// first one wins if the service supports conditional writes; otherwise the last one wins.
func (s *Store) SetIdentity(ctx context.Context, id string, replace bool) error {
	b, err := blob.EncodeIdentity(id)
	if err != nil {
		return err
	}
	if !replace {
		there, err := s.Identity(ctx)
		if err != nil || there != "" {
			return err
		}
	}
	err = s.putIdentity(ctx, b, !replace)
	if err != nil && !replace && minio.ToErrorResponse(err).StatusCode == http.StatusNotImplemented {
		err = s.putIdentity(ctx, b, false)
	}
	if err == nil || !replace && wasFirst(err) {
		return nil
	}
	return fmt.Errorf("writing the store's identity: %w", err)
}

// wasFirst returns whether err, the error of a conditional write, says that another caller has
// set an identity before or is setting it at the same time.
func wasFirst(err error) bool {
	status := minio.ToErrorResponse(err).StatusCode
	return status == http.StatusPreconditionFailed || status == http.StatusConflict
}

func (s *Store) putIdentity(ctx context.Context, b []byte, onlyNew bool) error {
	o := s.putOptions("application/json")
	if onlyNew {
		o.SetMatchETagExcept("*")
	}
	_, err := s.core.PutObject(patiently(ctx), s.bucket, s.name(blob.IdentityKey), bytes.NewReader(b), int64(len(b)), "", "", o)
	return err
}
