package s3

import (
	"context"
	"fmt"
	"iter"
	"strings"

	"github.com/minio/minio-go/v7"

	"github.com/purser-registry/purser/internal/blob"
)

var _ blob.Tree = (*Store)(nil)

// Directories implements blob.Tree.
func (s *Store) Directories(ctx context.Context, dir string) ([]string, error) {
	prefix := s.name(directory(dir))
	var names []string
	for info := range s.core.ListObjectsIter(patiently(ctx), s.bucket, minio.ListObjectsOptions{Prefix: prefix}) {
		if info.Err != nil {
			return nil, fmt.Errorf("listing directories: %w", info.Err)
		}
		if name, ok := strings.CutSuffix(strings.TrimPrefix(info.Key, prefix), "/"); ok && name != "" {
			names = append(names, name)
		}
	}
	return names, ctx.Err() // see List
}

// Others implements blob.Tree: a bucket has objects only.
func (s *Store) Others(context.Context, string, bool) ([]string, error) { return nil, nil }

// Readable implements blob.Tree: HEAD needs the same right as GET.
func (s *Store) Readable(context.Context, string) error { return nil }

// Files implements blob.Tree.
func (s *Store) Files(ctx context.Context, dir string) iter.Seq2[blob.Object, error] {
	return func(yield func(blob.Object, error) bool) {
		for o, err := range s.All(ctx, directory(dir)) {
			if strings.HasSuffix(o.Key, "/") {
				continue // an empty object that stands for a directory
			}
			if !yield(o, err) {
				return
			}
		}
	}
}

// directory returns what the keys of a directory's objects begin with.
func directory(dir string) string {
	if dir == "" {
		return ""
	}
	return strings.TrimSuffix(dir, "/") + "/"
}
