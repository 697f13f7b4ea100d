package distribution_test

import (
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/quota"
)

// limited gives the namespace acme a hard quota.
func (r *registry) limited(t *testing.T, most quota.Usage) {
	t.Helper()
	o := quota.Values{Bytes: &most.Bytes, Repositories: &most.Repositories, Tags: &most.Tags,
		Steps: []quota.Step{{Kind: quota.Reject, Percent: 100}}}
	if err := r.Quotas.Create(t.Context(), "acme", o); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Quotas.Count(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestQuotaRefusesBeforeTheBody: the size is known, so the answer comes before a client that
// expects 100-continue sends anything. A blob that the namespace has needs nothing.
func TestQuotaRefusesBeforeTheBody(t *testing.T) {
	t.Parallel()
	r := setup(t)
	content := pattern(1, 1000)
	r.Push(t, "acme/app", content)
	r.limited(t, quota.Usage{Bytes: 1500})
	big := pattern(2, 100_000)
	for _, request := range []struct{ method, path string }{
		{"POST", "/v2/acme/app/blobs/uploads/?digest=" + digest(big).String()},
		{"PUT", r.StartUpload(t, "acme/app", "") + "?digest=" + digest(big).String()},
		{"PATCH", r.StartUpload(t, "acme/app", "")},
	} {
		w := r.Dial(t)
		w.Send(t, request.method, request.path, []string{length(100_000), "Expect: 100-continue"}, "")
		a := w.Answer(t, request.method, request.path)
		a.Want(t, 409, oci.Denied)
		if text := string(a.Content); !strings.Contains(text, "may have 1.5 KiB of blobs, has 1000.0 Byte, and this needs 97.7 KiB more") ||
			!strings.Contains(text, `{"quota":"bytes","limit":1500,"used":1000,"needed":100000}`) {
			t.Errorf("%s: %s", request.method, text)
		}
	}
	// The same blob again, and in another repository of the namespace.
	r.Push(t, "acme/app", content)
	r.Push(t, "acme/web", content)
	// Saved chunks count.
	at := r.StartUpload(t, "acme/app", "")
	at = r.Do(t, "PATCH", at, pattern(3, 400)).Want(t, 202, "").Header.Get("Location")
	r.Do(t, "PATCH", at, pattern(4, 101)).Want(t, 409, oci.Denied)
	r.Do(t, "PUT", at+"?digest="+digest(pattern(3, 400)).String(), "").Want(t, 201, "")
	r.Do(t, "POST", "/v2/acme/app/blobs/uploads/?digest="+digest(big).String(), big).Want(t, 409, oci.Denied)
}

// TestQuotaStopsAStream: a client that doesn't say how much it will send is stopped when it has
// sent too much.
func TestQuotaStopsAStream(t *testing.T) {
	t.Parallel()
	// The store writes pieces of 512 KiB, and the first while the next is read. The smaller limit is
	// met then.
	for _, limit := range []int64{1 << 20, 700 << 10} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			r.Push(t, "acme/app", "x")
			r.limited(t, quota.Usage{Bytes: limit})
			sent := &counter{r: io.LimitReader(endless{}, 1<<30)}
			a, err := r.Try(t.Context(), "PATCH", r.StartUpload(t, "acme/app", ""), sent)
			if err == nil {
				a.Want(t, 409, oci.Denied)
			}
			if n := sent.n.Load(); n > 256<<20 {
				t.Errorf("%d bytes were sent (%v)", n, err)
			}
			r.Push(t, "acme/app", "still possible")
		})
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// counter counts what was read from r. The client's transport may go on reading after an answer.
type counter struct {
	r io.Reader
	n atomic.Int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// TestQuotaOfTagsAndRepositories refuses manifests and repositories, and deletes nothing.
func TestQuotaOfTagsAndRepositories(t *testing.T) {
	t.Parallel()
	r := setup(t)
	payload := r.Simple(t, "acme/app", 1, nil)
	r.Put(t, "acme/app", "one", payload)
	r.limited(t, quota.Usage{Tags: 1, Repositories: 1})
	r.Put(t, "acme/app", "one", payload)
	r.Do(t, "PUT", "/v2/acme/app/manifests/two", payload).Want(t, 409, oci.Denied)
	r.Do(t, "POST", "/v2/acme/web/blobs/uploads/?digest="+digest("x").String(), "x").Want(t, 409, oci.Denied)
	if known, err := r.Catalog.HasRepository(t.Context(), "acme/web"); known || err != nil {
		t.Error(known, err)
	}
	r.Do(t, "DELETE", "/v2/acme/app/manifests/one", "").Want(t, 202, "")
	r.Put(t, "acme/app", "two", payload)
}
