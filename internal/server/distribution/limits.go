package distribution

import (
	"context"
	"errors"
	"fmt"

	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/limit"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server"
)

const (
	// maxHeavy limits how many large manifests are parsed and stored at the same time, because
	// a parsed manifest can take ten times as much memory as its text.
	maxHeavy = 4
	// maxHeavyWaiting limits how many large manifests wait; those of one account, or of one address
	// without an account, may be a quarter of them. Their texts count in the memory budget.
	maxHeavyWaiting = 1024
	// heavyManifest is the size in bytes from which a manifest counts as large, so that
	// maxHeavy applies to it.
	heavyManifest = 256 << 10
	// manifestFactor is how many bytes of the memory budget are reserved for each byte of a
	// pushed manifest: one for its text and one for its parsed form. The parsed form may be
	// larger than the text; maxHeavy limits how often that happens at the same time.
	manifestFactor = 2
	// largeAnswer is the size in bytes of the largest answer that doesn't count in the memory
	// budget. Such an answer fits in the connection's buffer.
	largeAnswer = 64 << 10
	// nameOverhead is what a name of a list takes besides its bytes: a Go string, and its quotes.
	nameOverhead = 24
	// referrerRows is how many bytes one reading of referrers takes at most: a page, the row that
	// ends it, and what the driver keeps of the next.
	referrerRows = db.PageBytes + 2*catalog.MaxAnnotations
)

// hold reserves `n` bytes of the memory budget, until the request ends, for an answer that is
// built in memory. It reserves nothing if `n` is at most largeAnswer. It returns an error if
// the budget is used up.
func (c *call) hold(n int) error {
	if n <= largeAnswer {
		return nil
	}
	_, err := server.Observed(c.r.Context()).Lease.Take(c.r.Context(), int64(n))
	return err
}

// holdRows reserves memory for up to `n` rows of a list of names before they are read: for each name
// thrice, as PostgreSQL sends it, as it is kept, and in the answer. The caller calls `give` with the
// size of the answer, once that is known, so that what it doesn't need is given back. holdRows
// returns an error if the budget is used up.
func (c *call) holdRows(n, longest int) (give func(size int), err error) {
	lease := server.Observed(c.r.Context()).Lease
	taken, err := lease.Take(c.r.Context(), int64(n)*int64(3*longest+nameOverhead))
	if err != nil {
		return nil, err
	}
	return func(size int) {
		if needed := 2 * int64(size); size <= largeAnswer {
			lease.Give(taken)
		} else if needed < taken {
			lease.Give(taken - needed)
		}
	}, nil
}

// enterHeavy waits until a manifest of `n` bytes may be parsed and stored. A manifest smaller than
// heavyManifest never waits. A larger one waits while maxHeavy others are being stored; accounts
// get turns one after the other, so that one account's many manifests don't delay the others'. The
// caller must call `done` when the manifest is stored. enterHeavy returns an error if the request
// ends first, or if very many wait.
func (a *API) enterHeavy(c *call, n int) (done func(), err error) {
	if n < heavyManifest {
		return func() {}, nil
	}
	o := server.Observed(c.r.Context())
	who := limit.Caller{Address: o.Client}
	if share := o.Share(); share != "" {
		who = limit.Caller{Account: share, Known: true}
	}
	switch err := a.heavy.Enter(limit.WithCaller(c.r.Context(), who)); {
	case errors.Is(err, limit.ErrFull):
		return nil, oci.Errorf(oci.Unavailable, "too many large manifests are being pushed: try again in a moment")
	case err != nil:
		return nil, fmt.Errorf("waiting for other manifests: %w", context.Cause(c.r.Context()))
	}
	return a.heavy.Leave, nil
}
