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
	push := func() int { t.Helper(); return pushInOneRequest(t, r) }
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

// pushInOneRequest starts an upload, sends the blob, and returns the status of the second answer.
func pushInOneRequest(t *testing.T, r *registry) int {
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

// TestUploadsAheadOfFailover: a standby was promoted that lacks the rows of the uploads that this
// process has made in advance. A client that starts an upload then gets one that the database knows.
func TestUploadsAheadOfFailover(t *testing.T) {
	t.Parallel()
	r := setup(t)
	eventually(t, "an upload is made in advance", func() bool {
		if status := pushInOneRequest(t, r); status != http.StatusCreated {
			t.Fatalf("the first uploads: %d", status)
		}
		var ahead bool
		err := r.DB.Pool.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM uploads)").Scan(&ahead)
		return err == nil && ahead
	})
	before := r.Catalog.Interruptions()
	for _, sql := range []string{
		"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()",
		"DELETE FROM uploads",
	} {
		eventually(t, sql, func() bool {
			_, err := r.DB.Pool.Exec(t.Context(), sql)
			return err == nil
		})
	}
	eventually(t, "the interruption is noticed", func() bool { return r.Catalog.Interruptions() > before })
	if status := pushInOneRequest(t, r); status != http.StatusCreated {
		t.Errorf("an upload after the failover: %d", status)
	}
}
