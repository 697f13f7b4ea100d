package distribution_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/quota"
	"github.com/purser-registry/purser/internal/testscale"
)

// repeatSizes are sizes of uploads that are kept in the upload's row, or cross its limit, or are
// written to the store.
var repeatSizes = testscale.Pick([]int{400, catalog.MaxTail, catalog.MaxTail + 10}, []int{10, 400, catalog.MaxTail, catalog.MaxTail + 10, 1 << 20})

// breakOff sends the first n bytes of a request whose Content-Length is that of the whole content,
// closes the connection without reading the answer, and waits until the bytes are saved.
func (r *registry) breakOff(t *testing.T, method, path, content string, n, saved int) {
	t.Helper()
	w := r.Dial(t)
	w.Send(t, method, path, []string{length(len(content))}, content[:n])
	w.Close()
	at, _, _ := strings.Cut(path, "?")
	r.stands(t, at, saved)
	eventually(t, "the broken request to end", func() bool { return r.Gauge(t, "purser_http_requests_in_flight") == 0 })
}

// TestWholeRequestAfterABrokenOne: a connection breaks in the middle of a PATCH or PUT, and the
// client sends the whole request again to the same URL, without a Content-Range, to another
// replica, which breaks once more. The third sending must succeed. This must also hold for a second
// chunk, whether the client follows the Location of the answer to the first or stays at the URL of
// the POST.
func TestWholeRequestAfterABrokenOne(t *testing.T) {
	t.Parallel()
	one := setup(t)
	two := replica(t, one.DSN, one.Dir)
	two.Listen(t)
	for _, n := range repeatSizes {
		for _, method := range []string{"PATCH", "PUT"} {
			for _, before := range []int{0, 7, catalog.MaxTail + 7} {
				for _, follow := range []bool{true, false} {
					if follow && before == 0 { // there is nothing to follow yet
						continue
					}
					content := pattern(byte(n), before+n)
					d := digest(content)
					at := one.StartUpload(t, "a", "")
					if before > 0 {
						next := one.Do(t, "PATCH", at, content[:before]).Want(t, 202, "").Header.Get("Location")
						if follow {
							at = next
						}
					}
					path, status := at, 202
					if method == "PUT" {
						path, status = at+"?digest="+d.String(), 201
					}
					body := content[before:]
					one.breakOff(t, method, path, body, n/2, before+n/2)
					two.breakOff(t, method, path, body, n/4, before+n/2) // less than is there
					two.breakOff(t, method, path, body, n-1, before+n-1)
					a := one.Do(t, method, path, body)
					if a.StatusCode != status {
						t.Fatalf("%s of %d bytes after %d (follow %v): %d %s", method, n, before, follow, a.StatusCode, a.Content)
					}
					if method == "PATCH" {
						a.Want(t, 202, "", "Range", fmt.Sprintf("0-%d", len(content)-1))
						one.Do(t, "PUT", a.Header.Get("Location")+"?digest="+d.String(), "").Want(t, 201, "")
					}
					two.WantBlob(t, "a", d, content)
				}
			}
		}
	}
}

// TestRepeatedChunk: a chunk without a Content-Range is saved, but its answer is lost, as by a
// kill between commit and answer. The client sends it again to the same URL, by another replica.
// It must be appended once. A following chunk to the Location of the answer must be appended even
// if it has the same bytes.
func TestRepeatedChunk(t *testing.T) {
	t.Parallel()
	one := setup(t)
	two := replica(t, one.DSN, one.Dir)
	for _, n := range repeatSizes {
		chunk := pattern(byte(n), n)
		at := one.StartUpload(t, "a", "")
		for i := 1; i <= 3; i++ {
			end := fmt.Sprintf("0-%d", i*n-1)
			one.Do(t, "PATCH", at, chunk).Want(t, 202, "", "Range", end)
			two.Do(t, "PATCH", at, chunk).Want(t, 202, "", "Range", end)
			a, err := two.Try(t.Context(), "PATCH", at, chunked(chunk))
			if err != nil {
				t.Fatal(err)
			}
			at = a.Want(t, 202, "", "Range", end).Header.Get("Location")
		}
		content := strings.Repeat(chunk, 3)
		two.Do(t, "PUT", at+"?digest="+digest(content).String(), "").Want(t, 201, "")
		one.WantBlob(t, "a", digest(content), content)
	}
}

// TestRepeatInSmallerPieces: a client that got no answer to a large chunk sends the same bytes again
// in smaller chunks. Each answer must acknowledge only what the client has sent since, so that the
// next chunk is put in its place.
func TestRepeatInSmallerPieces(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for _, n := range []int{900, 3 * catalog.MaxTail} {
		content := pattern(byte(n), n)
		at := r.StartUpload(t, "a", "")
		r.Do(t, "PATCH", at, content).Want(t, 202, "")
		for i := range 3 {
			at = r.Do(t, "PATCH", at, content[i*n/3:(i+1)*n/3]).
				Want(t, 202, "", "Range", fmt.Sprintf("0-%d", (i+1)*n/3-1)).Header.Get("Location")
		}
		r.Do(t, "PUT", at+"?digest="+digest(content).String(), "").Want(t, 201, "")
		r.WantBlob(t, "a", digest(content), content)
	}
}

// TestRepeatNeedsNoMoreQuota: an upload fills its namespace's quota, and its connection breaks.
// Its repetition must not count the bytes that are there a second time.
func TestRepeatNeedsNoMoreQuota(t *testing.T) {
	t.Parallel()
	r := setup(t)
	const n = 1 << 20
	r.Push(t, "acme/app", "so that the namespace exists")
	r.limited(t, quota.Usage{Bytes: n + n/4})
	content := pattern(1, n)
	d := digest(content)
	for _, method := range []string{"PATCH", "PUT"} {
		at := r.StartUpload(t, "acme/app", "")
		path := at
		if method == "PUT" {
			path += "?digest=" + d.String()
		}
		r.breakOff(t, method, path, content, n/2, n/2)
		a := r.Do(t, method, path, content)
		if a.StatusCode > 202 {
			t.Fatalf("%s: %d %s", method, a.StatusCode, a.Content)
		}
		if method == "PATCH" {
			r.Do(t, "DELETE", at, "").Want(t, 204, "")
		}
	}
	r.WantBlob(t, "acme/app", d, content)
}

// TestURLOfTheFuture: the URL says that the client has an answer about bytes that the upload doesn't
// have, as after a failover to a database that lacks the last commits. The registry must answer 416
// with the upload's state, and append nothing.
func TestURLOfTheFuture(t *testing.T) {
	t.Parallel()
	r := setup(t)
	at := r.StartUpload(t, "a", "")
	next := r.Do(t, "PATCH", at, "some").Want(t, 202, "").Header.Get("Location")
	r.Do(t, "PATCH", strings.TrimSuffix(next, "4")+"9", "more").Want(t, 416, oci.BlobUploadInvalid, "Location", next, "Range", "0-3")
	for _, ref := range []string{".", ".-1", ".x", ".9223372036854775808", ".4.4"} {
		r.Do(t, "PATCH", at+ref, "more").Want(t, 404, oci.BlobUploadUnknown)
	}
	r.Do(t, "PUT", next+"?digest="+digest("some").String(), "").Want(t, 201, "")
}

// TestRepeatedPut: a PUT has made an upload a blob, but its answer was lost. The client sends it
// again, with or without the body, once or often at the same time, to any replica. The answer must
// be the same as the first. Another digest, another repository and a blob that is gone must be
// refused as before.
func TestRepeatedPut(t *testing.T) {
	t.Parallel()
	one := setup(t)
	two := replica(t, one.DSN, one.Dir)
	for i, n := range sizes {
		content := pattern(byte(i), n)
		d := digest(content)
		at := one.StartUpload(t, "a", "")
		put := func(r *registry, at string, d oci.Digest, body string) answer {
			return r.Do(t, "PUT", at+"?digest="+d.String(), body)
		}
		put(one, at, d, content).Want(t, 201, "")
		for _, r := range []*registry{one, two} {
			for _, body := range []string{content, ""} {
				put(r, at, d, body).Want(t, 201, "", "Location", "/v2/a/blobs/"+d.String(), "Docker-Content-Digest", d.String())
			}
		}
		put(one, at, digest("another"), content).Want(t, 404, oci.BlobUploadUnknown)
		put(one, strings.Replace(at, "/v2/a/", "/v2/b/", 1), d, content).Want(t, 404, oci.BlobUploadUnknown)
		one.Do(t, "DELETE", "/v2/a/blobs/"+d.String(), "").Want(t, 202, "")
		put(one, at, d, content).Want(t, 404, oci.BlobUploadUnknown)
	}
}

// TestRepeatedPutTellsNothing: the blob is in another repository of the registry, and the upload
// never ended. The registry must not say that the blob exists.
func TestRepeatedPutTellsNothing(t *testing.T) {
	t.Parallel()
	r := setup(t)
	d := r.Push(t, "theirs", "their content")
	mine := r.StartUpload(t, "mine", "")
	r.Do(t, "PUT", mine+"?digest="+d.String(), "").Want(t, 400, oci.DigestInvalid)
	r.Do(t, "DELETE", mine, "").Want(t, 204, "")
	r.Do(t, "PUT", mine+"?digest="+d.String(), "their content").Want(t, 404, oci.BlobUploadUnknown)
}

// TestRepeatsAtOnce: a client sends the same closing PUT several times at once, by two replicas, as
// after time-outs. Each must be answered with 201, or with 416 or 503 if another is still writing.
// One of them and every later repeat must be answered with 201.
func TestRepeatsAtOnce(t *testing.T) {
	t.Parallel()
	one := setup(t)
	two := replica(t, one.DSN, one.Dir)
	for _, n := range repeatSizes {
		for round := range 3 {
			content := pattern(byte(n+round), n)
			d := digest(content)
			path := one.StartUpload(t, "a", "") + "?digest=" + d.String()
			made := make(chan bool, 6)
			together(cap(made), func(i int) {
				a, err := []*registry{one, two}[i%2].Try(t.Context(), "PUT", path, strings.NewReader(content))
				switch {
				case err != nil:
					t.Error(err)
				case a.StatusCode == http.StatusCreated:
					made <- true
				case a.StatusCode != 416 && a.StatusCode != 503:
					t.Errorf("%d %s, want 201, 416 or 503", a.StatusCode, a.Content)
				}
			})
			if len(made) == 0 {
				t.Errorf("no PUT of %d bytes was answered with 201", n)
			}
			two.Do(t, "PUT", path, content).Want(t, 201, "")
			one.WantBlob(t, "a", d, content)
		}
	}
}
