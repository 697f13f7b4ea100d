package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/purser-registry/purser/cmd/purser/internal/servetest"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
)

// Clients that hang up during their requests cause no errors in PostgreSQL's log, except a
// few cancelled statements: on a busy machine, some take longer than the time that Purser
// grants a statement after its client has gone, and work in the background gives way to a client
// that has a lock for longer than 200 ms.
func TestHangUpsAreQuiet(t *testing.T) {
	t.Parallel()
	dbtest.EmptyDSN(t) // skips where there is no PostgreSQL
	s, log := startRecorded(t, servetest.Config(t))
	layer, _ := pushImage(t, s, "v1", "known")
	const clients, requests = 4, 100
	var group sync.WaitGroup
	for client := range clients {
		random := rand.New(rand.NewPCG(1, uint64(client)))
		group.Go(func() {
			for n := range requests {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(random.IntN(10_000))*time.Microsecond)
				hangUp(ctx, t, s, layer, n, fmt.Sprintf("tag-%d-%d", client, n))
				cancel()
			}
		})
	}
	group.Wait()
	if err := s.Stop(); err != nil {
		t.Errorf("stopping: %v", err)
	}
	if n := log.Count("canceling statement due to user request"); n > clients*requests/50 {
		t.Errorf("of %d requests, %d had a statement cancelled", clients*requests, n)
	}
	for _, line := range log.Complaints(t) {
		if !strings.Contains(line, "canceling statement due to user request") && !strings.Contains(line, "canceling statement due to lock timeout") {
			t.Errorf("the log has %s", line)
		}
	}
}

// hangUp sends the n-th request, which needs SQL statements, and closes its connection when
// ctx ends.
func hangUp(ctx context.Context, t *testing.T, s *servetest.Server, layer oci.Digest, n int, tag string) {
	t.Helper()
	manifest := fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"config":{"mediaType":"application/vnd.oci.image.config.v1+json",`+
		`"digest":%q,"size":5},"layers":[],"annotations":{"note":%q}}`, oci.MediaTypeImageManifest, layer, tag)
	method, path, body := "PUT", "/v2/library/app/manifests/"+tag, manifest
	switch n % 4 {
	case 0:
		method, path, body = "GET", "/v2/library/app/tags/list?n="+fmt.Sprint(n+1), ""
	case 1:
		method, path, body = "POST", "/v2/library/app/blobs/uploads/", ""
	case 2:
		method, path, body = "GET", "/api/v1/repository/library/app/tag/", ""
	}
	r, err := http.NewRequestWithContext(ctx, method, s.Registry+path, strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return
	}
	r.Header.Set("Content-Type", oci.MediaTypeImageManifest)
	if answer, err := http.DefaultClient.Do(r); err == nil {
		answer.Body.Close() //nolint:errcheck // nothing of it is used
	}
}
