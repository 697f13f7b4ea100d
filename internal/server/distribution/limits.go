package distribution

import (
	"context"
	"fmt"

	"github.com/purser-registry/purser/internal/server"
)

const (
	// maxHeavy limits how many large manifests are parsed and stored at the same time,
	// since the parsed form can be ten times as large as the manifest.
	maxHeavy = 4
	// heavyManifest is the size from which a manifest counts as large, in bytes.
	heavyManifest = 256 << 10
	// manifestFactor is how many bytes of memory count for each byte of a manifest: the
	// payload, and its parsed form until it is stored.
	manifestFactor = 2
	// largeAnswer is the size from which an answer in memory counts for the request's
	// lease, in bytes. Smaller answers fit in the connection's buffer.
	largeAnswer = 64 << 10
)

// hold counts an answer of n bytes in memory against the memory budget, in the request's
// lease, until the request ends. Answers up to largeAnswer don't count.
func (c *call) hold(n int) error {
	if n <= largeAnswer {
		return nil
	}
	_, err := server.Observed(c.r.Context()).Lease.Take(c.r.Context(), int64(n))
	return err
}

// heavy waits until a manifest of n bytes may be parsed and stored. The caller calls
// done afterwards.
func (a *API) heavy(ctx context.Context, n int) (done func(), err error) {
	if n < heavyManifest {
		return func() {}, nil
	}
	select {
	case a.heavyTurns <- struct{}{}:
		return func() { <-a.heavyTurns }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("waiting for other manifests: %w", context.Cause(ctx))
	}
}
