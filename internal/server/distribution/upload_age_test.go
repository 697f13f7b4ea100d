package distribution_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server/distribution"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// TestUploadsAheadOutliveNoShortAge: a process inserts the rows of uploads in advance, for
// clients that start an upload later. The reaper deletes an upload that gets no new bytes for
// UploadMaxAge. Even if UploadMaxAge is only two seconds, no client may get an upload that
// the reaper has deleted.
func TestUploadsAheadOutliveNoShortAge(t *testing.T) {
	t.Parallel()
	const maxAge = 2 * time.Second
	r := setup(t, func(o *servertest.Options) { o.Distribution.UploadMaxAge = maxAge })
	push := func() int {
		t.Helper()
		resp, err := http.Post(r.URL+"/v2/n/r/blobs/uploads/", "", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusAccepted {
			t.Fatalf("starting an upload: %s", resp.Status)
		}
		put, err := http.NewRequestWithContext(t.Context(), http.MethodPut,
			r.URL+resp.Header.Get("Location")+"?digest="+oci.Compute(oci.SHA256, []byte("blob")).String(), strings.NewReader("blob"))
		if err != nil {
			t.Fatal(err)
		}
		if resp, err = http.DefaultClient.Do(put); err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	eventually(t, "an upload is made in advance", func() bool {
		if status := push(); status != http.StatusCreated {
			t.Fatalf("the first uploads: %d", status)
		}
		var ahead bool
		err := r.DB.Pool.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM uploads)").Scan(&ahead)
		return err == nil && ahead
	})
	age := maxAge + distribution.AheadAge(maxAge)
	eventually(t, "what was made ahead is given up", func() bool {
		n, err := r.Catalog.ReapUploads(t.Context(), age, 1000)
		return err == nil && n > 0
	})
	if status := push(); status != http.StatusCreated {
		t.Errorf("an upload after the others were given up: %d", status)
	}
}
