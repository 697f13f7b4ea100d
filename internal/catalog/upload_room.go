package catalog

import (
	"context"
	"fmt"
	"math"
	"strings"

	"github.com/purser-registry/purser/internal/oci"
)

// The bytes that unfinished uploads have in the store count for the quota of their namespace. A request
// asks for room before it writes to the store, in the batch by which it claims the upload; see
// purser_quota_reserve. A client that says how much it sends gets room for all of it at once. One
// that doesn't gets a little more than it has sent, and the request asks again when that is used up.

// UploadNeed is what a request needs for an upload.
type UploadNeed struct {
	Bytes  int64      // of the whole upload, as far as it is known
	Ahead  int64      // how much more may come
	Digest oci.Digest // of the blob, if it is known: one that the namespace has needs no room
}

// UploadClaim is what ClaimUpload gives a request.
type UploadClaim struct {
	Attempt int64
	Next    int64 // the lowest reserved object number
	// Room is how many bytes the upload may have, math.MaxInt64 if nothing limits it now.
	Room int64
}

// reserved is the answer of purser_quota_reserve, nil if nothing limits the upload.
type reserved struct{ n *int64 }

func (r *reserved) bytes() int64 {
	if r.n == nil {
		return math.MaxInt64
	}
	return *r.n
}

// reserve adds a statement that reserves room for an upload whose row has the given attempt. It adds
// none if this process knows that the namespace has no quota.
func (c *Catalog) reserve(b *batch, u Upload, attempt int64, need UploadNeed) *reserved {
	r := new(reserved)
	namespace, _, _ := strings.Cut(u.Repository, "/")
	if q, ok := c.quotas.get(namespace); ok && q.namespaceID == 0 {
		return r
	}
	var d []byte
	if !need.Digest.IsZero() {
		d = need.Digest.Bytes()
	}
	b.row([]any{&r.n}, "SELECT purser_quota_reserve($1, $2, $3, $4, $5, $6)", u.ID, attempt, namespace, need.Bytes, need.Ahead, d)
	return r
}

// ReserveUpload reserves more room for the request that has claimed the upload, and returns how
// many bytes the upload may have. Errors: the same as ClaimUpload's.
func (c *Catalog) ReserveUpload(ctx context.Context, u Upload, need UploadNeed) (room int64, err error) {
	b := new(batch)
	r := c.reserve(b, u, u.Attempt, need)
	if b.Len() == 0 {
		return r.bytes(), nil
	}
	err = b.send(ctx, c.db.Pool)
	if refused := c.quotaRefusal(ctx, u.Repository, err); oci.CodeOf(refused) != "" {
		return 0, refused
	}
	if err != nil {
		return 0, fmt.Errorf("reserving room for upload %s: %w", u.ID, err)
	}
	return r.bytes(), nil
}
