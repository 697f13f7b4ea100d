package distribution_test

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/quota"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// patch appends content to an upload, and says its length only if told to.
func (r *registry) patch(ctx context.Context, at, content string, length bool) (answer, error) {
	var body io.Reader = strings.NewReader(content)
	if !length {
		body = io.MultiReader(body)
	}
	return r.Try(ctx, "PATCH", at, body)
}

// TestUnfinishedUploadsCount: what unfinished uploads of a namespace have counts for its quota,
// whatever their size, and until they end.
func TestUnfinishedUploadsCount(t *testing.T) {
	t.Parallel()
	for _, length := range []bool{true, false} {
		for _, size := range []int{400, 400_000} { // in the upload's row, and in the store
			r := setup(t)
			r.Push(t, "acme/app", "x")
			r.limited(t, quota.Usage{Bytes: int64(2*size + size/2)})
			send := func(seed, status int) (at string) {
				t.Helper()
				at = r.StartUpload(t, "acme/app", "")
				a, err := r.patch(t.Context(), at, pattern(byte(seed), size), length)
				if err != nil {
					t.Fatal(err)
				}
				if a.StatusCode != status {
					t.Fatalf("length said: %v, %d bytes: %d %s, want %d", length, size, a.StatusCode, a.Content, status)
				}
				if status == 409 && !strings.Contains(string(a.Content), "in unfinished uploads") {
					t.Errorf("%s", a.Content)
				}
				return at
			}
			one, two := send(1, 202), send(2, 202)
			refused := send(3, 409)
			r.Do(t, "PUT", one+"?digest="+digest(pattern(1, size)).String(), "").Want(t, 201, "")
			r.Do(t, "DELETE", refused, "").Want(t, 204, "")
			// The stored part of a refused body is there until its upload ends, so it counts.
			r.Do(t, "DELETE", send(4, 409), "").Want(t, 204, "")
			r.Do(t, "DELETE", two, "").Want(t, 204, "")
			send(5, 202)
			r.Push(t, "other/app", pattern(6, size))
			r.Push(t, "acme/web", pattern(1, size)) // the namespace has it
		}
	}
}

// TestFailedPushesOfAKnownBlob: pushes of a large blob that a full namespace has fail, since their
// content is another or their clients go away. They must leave nothing that counts, so that the next
// push of such a blob succeeds.
func TestFailedPushesOfAKnownBlob(t *testing.T) {
	t.Parallel()
	const size = 400_000
	content := pattern(1, size)
	d := digest(content)
	for _, length := range []bool{true, false} {
		r := setup(t)
		r.Push(t, "acme/app", content)
		r.limited(t, quota.Usage{Bytes: size})
		push := func(after string) {
			t.Helper()
			eventually(t, "the failed request to end", func() bool { return r.counted(t) == size })
			a := r.Do(t, "POST", "/v2/acme/web/blobs/uploads/?digest="+d.String(), content)
			if a.StatusCode != 201 {
				t.Errorf("length said: %v, after %s: %d %s", length, after, a.StatusCode, a.Content)
			}
			if list := r.orphans(t); len(list) > 0 {
				t.Errorf("after %s: nobody owns %v", after, list)
			}
		}
		put := func(at, content string) answer {
			t.Helper()
			var body io.Reader = strings.NewReader(content)
			if !length {
				body = io.MultiReader(body)
			}
			a, err := r.Try(t.Context(), "PUT", at+"?digest="+d.String(), body)
			if err != nil {
				t.Fatal(err)
			}
			return a
		}

		at := r.StartUpload(t, "acme/web", "")
		put(at, pattern(2, size)).Want(t, 400, oci.DigestInvalid)
		r.Do(t, "GET", at, "").Want(t, 404, oci.BlobUploadUnknown)
		push("another content")

		at = r.StartUpload(t, "acme/more", "")
		w, headers, first := r.Dial(t), []string{"Transfer-Encoding: chunked"}, fmt.Sprintf("%x\r\n%s\r\n", size/2, content[:size/2])
		if length {
			headers, first = []string{servertest.Length(size)}, content[:size/2]
		}
		w.Send(t, "PUT", at+"?digest="+d.String(), headers, first)
		eventually(t, "a promise of room", func() bool { return r.counted(t) > size })
		w.Close() //nolint:errcheck // that is the test
		push("a broken connection")
		r.Do(t, "GET", at, "").Want(t, 404, oci.BlobUploadUnknown)
	}
}

// TestParallelUploadsUnderAQuota: two replicas take uploads of one namespace at the same time, in
// pieces of random sizes, with and without a length. At no time has the namespace more than its
// quota, with all that lies in the store.
func TestParallelUploadsUnderAQuota(t *testing.T) {
	t.Parallel()
	one := setup(t)
	one.Push(t, "acme/app", "x")
	const most = 2 << 20
	one.limited(t, quota.Usage{Bytes: most})
	replicas := []*registry{one, replica(t, one.DSN, one.Dir)}
	var all sync.WaitGroup
	var mu sync.Mutex
	taken, refused := 0, 0
	for i := range 16 {
		random := rand.New(rand.NewPCG(rand.Uint64(), uint64(i))) //nolint:gosec // a test's choice
		all.Go(func() {
			at, content := one.StartUpload(t, "acme/app", ""), ""
			for j := range 3 {
				// Since the requests don't follow Location, a piece that began as the one before it would be its repeat.
				piece := pattern(byte(3*i+j), 1+random.IntN(400_000))
				a, err := replicas[random.IntN(2)].patch(t.Context(), at, piece, random.IntN(2) == 0)
				mu.Lock()
				if err == nil && a.StatusCode == 202 {
					taken++
					content += piece
				} else {
					refused++ // the connection may end before the answer is read
				}
				mu.Unlock()
				if err == nil && a.StatusCode != 202 && a.StatusCode != 409 {
					t.Errorf("%d %s", a.StatusCode, a.Content)
				}
			}
			if random.IntN(3) == 0 && content != "" {
				a := one.Do(t, "PUT", at+"?digest="+digest(content).String(), "")
				if a.StatusCode != 201 && a.StatusCode != 409 {
					t.Errorf("%d %s", a.StatusCode, a.Content)
				}
			}
		})
	}
	all.Wait()
	t.Logf("%d pieces were taken, %d refused", taken, refused)
	if taken == 0 || refused == 0 {
		t.Error("all or nothing was refused")
	}
	var used int64
	err := one.DB.Pool.QueryRow(t.Context(), `
		SELECT q.bytes + s.bytes + purser_quota_uploads(q.namespace_id, '00000000-0000-0000-0000-000000000000')
		FROM namespacequotas q CROSS JOIN LATERAL purser_quota_slots(q.namespace_id) s`).Scan(&used)
	if err != nil || used > most {
		t.Errorf("%d bytes are used or promised, of %d: %v", used, most, err)
	}
	var stored int64
	err = filepath.WalkDir(one.Dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return fmt.Errorf("%s: %w", e.Name(), err)
		}
		stored += info.Size()
		return nil
	})
	if err != nil || stored > most+4096 {
		t.Errorf("%d bytes are in the store, of %d: %v", stored, most, err)
	}
	one.Do(t, "POST", "/v2/acme/app/blobs/uploads/?digest="+digest(pattern(1, most)).String(), pattern(1, most)).Want(t, 409, oci.Denied)
}
