package s3_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/minio/minio-go/v7"
	"golang.org/x/sync/errgroup"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/blob/blobtest"
	"github.com/purser-registry/purser/internal/testscale"
)

// List must read all pages of the service's listing. It must leave out foreign objects in the
// bucket, without a request for each.
func TestListPages(t *testing.T) {
	t.Parallel()
	o := setup(t)
	client := blobtest.S3Client(t, o)
	put := func(name string) error {
		_, err := client.PutObject(t.Context(), o.Bucket, o.Prefix+"/"+name, bytes.NewReader([]byte("x")), 1, "", "", minio.PutObjectOptions{})
		return err
	}
	var group errgroup.Group
	group.SetLimit(8)
	want := make([]string, testscale.Pick(1030, 2030))
	for i := range want {
		want[i] = blob.NewBase() + "-0"
		group.Go(func() error { return put(want[i]) })
	}
	for i := range testscale.Pick(110, 1100) {
		group.Go(func() error { return put(fmt.Sprintf("docker/registry/v2/%d/data", i)) })
	}
	for _, name := range []string{"README", want[0] + "x", want[1][:32] + "/x"} {
		group.Go(func() error { return put(name) })
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	slices.Sort(want)
	tr := &transport{}
	s := newStore(t, withTransport(o, tr))
	var got []string
	for o, err := range s.List(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, o.Key)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%d objects are listed, want %d in order", len(got), len(want))
	}
	if n := strings.Count(tr.take(), "list"); n > 4 {
		t.Errorf("%d requests", n)
	}
	if o, err := s.Stat(t.Context(), "docker/registry/v2/7/data"); err != nil || o.Size != 1 {
		t.Errorf("a foreign object: %+v, %v", o, err)
	}
}
