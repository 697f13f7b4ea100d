package distribution_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/testscale"
)

// together runs n functions at once and waits for all.
func together(n int, f func(i int)) {
	var wg sync.WaitGroup
	begin := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-begin
			f(i)
		})
	}
	close(begin)
	wg.Wait()
}

// TestConcurrentPushes: twelve clients push the same blobs through two replicas at the same
// time, and push one of two different manifests to the same tag. All pushes must succeed, all
// content must be complete, and both replicas must return the same manifest for the tag.
func TestConcurrentPushes(t *testing.T) {
	t.Parallel()
	one := setup(t)
	two := replica(t, one.DSN, one.Dir)
	two.Listen(t)
	layers := []string{pattern(1, 10_000), pattern(2, 100_000), pattern(3, 300_000)}
	config := "{}"
	var digests []oci.Digest
	for _, l := range layers {
		digests = append(digests, digest(l))
	}
	payloads := []string{
		image(t, digest(config), digests, nil), image(t, digest(config), digests, object{"annotations": map[string]string{"other": "1"}}),
	}
	together(12, func(i int) {
		r := []*registry{one, two}[i%2]
		for _, content := range append(layers, config) {
			if err := r.tryPush(t.Context(), "a", content, i%3); err != nil {
				t.Errorf("client %d: %v", i, err)
				return
			}
		}
		a, err := r.Try(t.Context(), "PUT", "/v2/a/manifests/latest", strings.NewReader(payloads[i/2%2]))
		if err != nil || a.StatusCode != 201 {
			t.Errorf("client %d: manifest: %v %d %s", i, err, a.StatusCode, a.Content)
		}
	})
	for _, r := range []*registry{one, two} {
		for i, l := range layers {
			r.WantBlob(t, "a", digests[i], l)
		}
		for _, p := range payloads {
			r.Do(t, "GET", "/v2/a/manifests/"+digest(p).String(), "").Want(t, 200, "").Text(t, p)
		}
		r.Do(t, "GET", "/v2/a/tags/list", "").Want(t, 200, "").Text(t, `{"name":"a","tags":["latest"]}`)
	}
	tag := func(r *registry) string {
		return string(r.Do(t, "GET", "/v2/a/manifests/latest", "").Want(t, 200, "").Content)
	}
	eventually(t, "both replicas agree on the tag", func() bool { return tag(one) == tag(two) })
}

// tryPush pushes a blob in one of three ways. If `way` is 0, it sends one POST with the
// content. If `way` is 1, it sends a POST, a PATCH with the first half, and a PUT with the
// rest. If `way` is 2, it sends a POST, and a PUT with the content.
func (r *registry) tryPush(ctx context.Context, repository, content string, way int) error {
	d := digest(content)
	path := "/v2/" + repository + "/blobs/uploads/"
	expect := func(method, path, body string, status int) (string, error) {
		a, err := r.Try(ctx, method, path, strings.NewReader(body))
		if err == nil && a.StatusCode != status {
			err = fmt.Errorf("%s %s: %d %s", method, path, a.StatusCode, a.Content)
		}
		if err != nil {
			return "", err
		}
		return a.Header.Get("Location"), nil
	}
	if way == 0 {
		_, err := expect("POST", path+"?digest="+d.String(), content, 201)
		return err
	}
	at, err := expect("POST", path, "", 202)
	if err != nil {
		return err
	}
	if way == 1 {
		if at, err = expect("PATCH", at, content[:len(content)/2], 202); err != nil {
			return err
		}
		content = content[len(content)/2:]
	}
	_, err = expect("PUT", at+"?digest="+d.String(), content, 201)
	return err
}

// TestConcurrentTags: eight clients push different manifests at the same time. All set the same
// tags, half of them in the reverse order. All pushes must succeed, without a deadlock, and
// each tag must point to a complete manifest.
func TestConcurrentTags(t *testing.T) {
	t.Parallel()
	r := setup(t)
	const n = 8
	payloads := make([]string, n)
	for i := range payloads {
		payloads[i] = r.Simple(t, "a", i, nil)
	}
	together(n, func(i int) {
		for round := range 5 {
			query := fmt.Sprintf("?tag=x&tag=y&tag=t%d", round)
			if i%2 == 0 {
				query = fmt.Sprintf("?tag=t%d&tag=y&tag=x", round)
			}
			a, err := r.Try(t.Context(), "PUT", "/v2/a/manifests/"+digest(payloads[i]).String()+query, strings.NewReader(payloads[i]))
			if err != nil || a.StatusCode != 201 {
				t.Errorf("client %d: %v %d %s", i, err, a.StatusCode, a.Content)
			}
		}
	})
	for _, tag := range []string{"x", "y", "t0", "t4"} {
		a := r.Do(t, "GET", "/v2/a/manifests/"+tag, "").Want(t, 200, "")
		if got := digest(string(a.Content)).String(); got != a.Header.Get("Docker-Content-Digest") {
			t.Errorf("%s: body of %s, header %s", tag, got, a.Header.Get("Docker-Content-Digest"))
		}
	}
}

// TestRacingChunks: four requests to two replicas send different bytes for the same range of
// one upload at the same time. The registry must accept exactly one of them. The finished blob
// must consist of the bytes that the upload had before and those of the accepted request.
func TestRacingChunks(t *testing.T) {
	t.Parallel()
	one := setup(t)
	two := replica(t, one.DSN, one.Dir)
	for _, n := range []int{1000, catalog.MaxTail + 1, 1 << 20} {
		for round := range testscale.Pick(3, 6) {
			stored := []int{0, 100, catalog.MaxTail + 100}[round%3]
			head := pattern(9, stored)
			at := one.StartUpload(t, "a", "")
			if stored > 0 {
				one.Do(t, "PATCH", at, head).Want(t, 202, "")
			}
			const racers = 4
			won := make(chan int, racers)
			together(racers, func(i int) {
				r := []*registry{one, two}[i%2]
				a, err := r.Try(t.Context(), "PATCH", at, chunked(pattern(byte(i), n)), "Content-Range", fmt.Sprintf("%d-%d", stored, stored+n-1))
				switch {
				case err != nil:
					t.Error(err)
				case a.StatusCode == 202:
					won <- i
				case a.StatusCode != 416 && a.StatusCode != 503:
					t.Errorf("%d %s, want 202, 416 or 503", a.StatusCode, a.Content)
				}
			})
			close(won)
			if len(won) != 1 {
				t.Fatalf("%d of %d racing chunks of %d bytes after %d were accepted, want exactly one", len(won), racers, n, stored)
			}
			content := head + pattern(byte(<-won), n)
			two.Do(t, "PUT", at+"?digest="+digest(content).String(), "").Want(t, 201, "")
			one.WantBlob(t, "a", digest(content), content)
		}
	}
}

// TestRacingStreams: three requests without Content-Range send bytes to one upload at the same
// time. The registry must either append the bytes of a request to those that the upload has, or
// refuse the request. The finished blob must consist of the accepted bodies, in the order that
// the Range headers of their answers say.
func TestRacingStreams(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for _, n := range []int{500, catalog.MaxTail, 300_000} {
		for range 4 {
			at := r.StartUpload(t, "a", "")
			var mu sync.Mutex
			end := map[string]string{} // Range header of the answer: the piece
			together(3, func(i int) {
				piece := pattern(byte(i), n)
				a, err := r.Try(t.Context(), "PATCH", at, strings.NewReader(piece))
				switch {
				case err != nil:
					t.Error(err)
				case a.StatusCode == 202:
					mu.Lock()
					end[a.Header.Get("Range")] = piece
					mu.Unlock()
				case a.StatusCode != 416 && a.StatusCode != 503:
					t.Errorf("%d %s, want 202, 416 or 503", a.StatusCode, a.Content)
				}
			})
			var content string
			for i := range end {
				piece, ok := end[fmt.Sprintf("0-%d", len(content)+n-1)]
				if !ok {
					t.Fatalf("no piece ends the first %d bytes (%s)", len(content)+n, i)
				}
				content += piece
			}
			if content == "" {
				t.Fatal("nobody won")
			}
			r.Do(t, "PUT", at+"?digest="+digest(content).String(), "").Want(t, 201, "")
			r.WantBlob(t, "a", digest(content), content)
		}
	}
}

// TestTakeover: a PATCH to one replica stalls in the middle of its body. Meanwhile a PATCH of
// the same range to another replica takes over the upload. The registry must accept the later
// PATCH. When the stalled PATCH continues, the registry must answer it with 416, and the upload
// must not change.
func TestTakeover(t *testing.T) {
	t.Parallel()
	one := setup(t)
	two := replica(t, one.DSN, one.Dir)
	for _, stored := range []int{0, catalog.MaxTail + 100} {
		head := pattern(9, stored)
		at := one.StartUpload(t, "a", "")
		if stored > 0 {
			one.Do(t, "PATCH", at, head).Want(t, 202, "")
		}
		before := one.large(t)
		stalled, feed := io.Pipe()
		done := make(chan answer, 1)
		go func() {
			a, err := one.Try(t.Context(), "PATCH", at, stalled, "Content-Range", fmt.Sprintf("%d-%d", stored, stored+2<<20-1))
			if err != nil {
				t.Error(err)
			}
			done <- a
		}()
		if _, err := io.WriteString(feed, pattern(1, 1<<20)); err != nil { // it has begun to write
			t.Fatal(err)
		}
		eventually(t, "an object that is being written", func() bool { return one.large(t) > before })
		mine := pattern(2, 700_000)
		two.Do(t, "PATCH", at, mine, "Content-Range", fmt.Sprintf("%d-%d", stored, stored+len(mine)-1)).Want(t, 202, "")
		if _, err := io.WriteString(feed, pattern(3, 1<<20)); err != nil {
			t.Fatal(err)
		}
		feed.Close()
		if a := <-done; a.StatusCode != 416 {
			t.Errorf("the stalled request: %d %s, want 416", a.StatusCode, a.Content)
		}
		content := head + mine
		one.Do(t, "PUT", at+"?digest="+digest(content).String(), "").Want(t, 201, "")
		two.WantBlob(t, "a", digest(content), content)
	}
}

// large counts the objects in the store that have at least half a MiB. It includes objects that
// are still being written.
func (r *registry) large(t *testing.T) (n int) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(r.Dir, "objects", "*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if fi, err := os.Stat(f); err == nil && fi.Size() >= 512<<10 {
			n++
		}
	}
	return n
}

// TestCancelWhileWriting: a client cancels an upload while another request is still sending
// bytes of the upload. The other request must fail, and the registry must not have the blob
// afterwards.
func TestCancelWhileWriting(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for _, n := range []int{10, 1 << 20} {
		content := pattern(1, 2*n)
		for _, method := range []string{"PATCH", "PUT"} {
			at := r.StartUpload(t, "a", "")
			body, feed := io.Pipe()
			done := make(chan answer, 1)
			go func() {
				a, err := r.Try(t.Context(), method, at+"?digest="+digest(content).String(), body)
				if err != nil {
					t.Error(err)
				}
				done <- a
			}()
			if _, err := io.WriteString(feed, content[:n]); err != nil {
				t.Fatal(err)
			}
			r.received(t, at)
			r.Do(t, "DELETE", at, "").Want(t, 204, "")
			// The HTTP client stops sending the body if it gets the answer before it has sent
			// the whole body.
			if _, err := io.WriteString(feed, content[n:]); err != nil && !errors.Is(err, io.ErrClosedPipe) {
				t.Fatal(err)
			}
			feed.Close()
			if a := <-done; a.StatusCode != 416 && a.StatusCode != 404 {
				t.Errorf("%s to a cancelled upload: %d %s, want 416 or 404", method, a.StatusCode, a.Content)
			}
			r.Do(t, "GET", at, "").Want(t, 404, oci.BlobUploadUnknown)
			r.Do(t, "GET", "/v2/a/blobs/"+digest(content).String(), "").Want(t, 404, "")
		}
	}
}

// received waits until a request to the upload is being answered.
func (r *registry) received(t *testing.T, at string) {
	t.Helper()
	eventually(t, "a request in flight to "+at, func() bool { return r.Gauge(t, "purser_http_requests_in_flight") > 0 })
}

// TestRacingClose: four requests finish one upload at the same time. One must get 201. The
// others must get 201 too, since they repeat it, or 416 while another request is still finishing
// the upload.
func TestRacingClose(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for _, n := range []int{0, 1000, 200_000} {
		content := pattern(byte(n), n)
		at := r.StartUpload(t, "a", "")
		r.Do(t, "PATCH", at, content).Want(t, 202, "")
		var mu sync.Mutex
		got := map[int]int{}
		together(4, func(int) {
			a, err := r.Try(t.Context(), "PUT", at+"?digest="+digest(content).String(), http.NoBody)
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			got[a.StatusCode]++
			mu.Unlock()
		})
		if got[201] == 0 || got[201]+got[416] != 4 {
			t.Errorf("statuses %v, want 201, some may be 416", got)
		}
		r.WantBlob(t, "a", digest(content), content)
	}
}

// TestGetWhileDelete: clients pull a blob or manifest while other clients delete it. Each pull
// must get the whole content, or 404.
func TestGetWhileDelete(t *testing.T) {
	t.Parallel()
	r := setup(t)
	content := pattern(1, 200_000)
	d := digest(content)
	payload := r.Simple(t, "a", 1, nil)
	for range 10 {
		r.Push(t, "a", content)
		m := r.Put(t, "a", "v1", payload)
		together(6, func(i int) {
			path, want := "/v2/a/blobs/"+d.String(), content
			if i%2 == 0 {
				path, want = "/v2/a/manifests/"+m.String(), payload
			}
			if i < 2 {
				r.Try(t.Context(), "DELETE", path, http.NoBody) //nolint:errcheck // checked below
				return
			}
			a, err := r.Try(t.Context(), "GET", path, http.NoBody)
			if err != nil || a.StatusCode != 404 && (a.StatusCode != 200 || string(a.Content) != want) {
				t.Errorf("%s: %v, %d, %d bytes", path, err, a.StatusCode, len(a.Content))
			}
		})
		r.Do(t, "GET", "/v2/a/blobs/"+d.String(), "").Want(t, 404, oci.BlobUnknown)
		r.Do(t, "GET", "/v2/a/manifests/v1", "").Want(t, 404, oci.ManifestUnknown)
	}
}
