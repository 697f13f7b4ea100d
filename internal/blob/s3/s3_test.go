package s3_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/minio/minio-go/v7"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/blob/blobtest"
	"github.com/purser-registry/purser/internal/blob/s3"
	"github.com/purser-registry/purser/internal/testscale"
)

func newStore(t testing.TB, o s3.Options) *s3.Store {
	t.Helper()
	s, err := s3.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// keysIn returns the keys of an upload's objects and multipart uploads in the bucket.
func keysIn(t testing.TB, o s3.Options, base string) []string {
	t.Helper()
	c := blobtest.S3Client(t, o)
	prefix := o.Prefix + "/"
	keys := []string{}
	for info := range c.ListObjectsIter(t.Context(), o.Bucket, minio.ListObjectsOptions{Prefix: prefix + base, Recursive: true}) {
		if info.Err != nil {
			t.Fatal(info.Err)
		}
		keys = append(keys, strings.TrimPrefix(info.Key, prefix))
	}
	page, err := c.ListMultipartUploads(t.Context(), o.Bucket, prefix+base, "", "", "", 1000)
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range page.Uploads {
		keys = append(keys, strings.TrimPrefix(u.Key, prefix)+"?")
	}
	slices.Sort(keys)
	return keys
}

// TestSuite isn't parallel, because blobtest.Run measures memory.
func TestSuite(t *testing.T) {
	o := blobtest.S3Server(t)
	o.PartSize = 5 << 20
	blobtest.Run(t, blobtest.Backend{
		Open:  func(t testing.TB) blob.Store { return newStore(t, o) },
		Keys:  func(t testing.TB, base string) []string { return keysIn(t, o, base) },
		Part:  5 << 20,
		Sizes: testscale.Pick([]int{0, 5 << 20, 5<<20 + 1}, []int{0, 1, 5<<20 - 1, 5 << 20, 5<<20 + 1}),
	})
}
