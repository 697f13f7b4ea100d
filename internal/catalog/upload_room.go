package catalog

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/purser-registry/purser/internal/oci"
)

// The bytes that unfinished uploads have in the store count for the quota of their namespace. A request
// asks for room before it writes to the store, in the batch by which it claims the upload; see
// purser_quota_reserve. A client that says how much it sends gets room for all of it at once. One
// that doesn't gets a little more than it has sent, and the request asks again when that is used up.
//
// The room is promised to a request, which renews the promise while it runs (RenewUpload). When its
// process dies, the promise is over after PromiseAge, and only what was acknowledged counts.
//
// A request that fails gives back what it hasn't stored (ReleaseUpload). But if it has got room beyond
// the limit, for a blob that the namespace has, it ends its upload (AbandonUpload): what such uploads
// leave would add up, or keep others from pushing blobs that the namespace has.

const (
	// PromiseAge is how long a request has the room that it was promised without renewing it.
	PromiseAge = 30 * time.Second
	// deadUpload is how long after that an upload is deleted of which nothing was acknowledged: only
	// its dead request may have left bytes in the store.
	deadUpload = 10 * time.Minute
)

// UploadNeed is what a request needs for an upload.
type UploadNeed struct {
	Bytes  int64      // of the whole upload, as far as it is known
	Ahead  int64      // how much more may come
	Digest oci.Digest // of the blob, if it is known: one that the namespace has counts already
}

// UploadClaim is what ClaimUpload gives a request.
type UploadClaim struct {
	Attempt int64
	Next    int64 // the lowest reserved object number
	// Room is how many bytes the upload may have, math.MaxInt64 if nothing limits it now.
	Room int64
	// Promised says that room was promised to the request, which has to renew the promise.
	Promised bool
	// Beyond says that the room is beyond the limit: if the request fails, it must call
	// AbandonUpload.
	Beyond bool
}

// reserved is the answer of purser_quota_reserve, nil if nothing limits the upload.
type reserved struct{ n *int64 }

// room returns how many bytes the upload may have, math.MaxInt64 if nothing limits it now, and
// whether that is beyond the limit.
func (r *reserved) room() (n int64, beyond bool) {
	switch {
	case r.n == nil || *r.n >= 1<<62:
		return math.MaxInt64, false
	case *r.n < 0:
		return -*r.n, true
	}
	return *r.n, false
}

// reserve adds a statement that reserves room for an upload whose row has the given attempt, unless an
// earlier guard has refused the batch: a request that hasn't got the upload must leave alone what the
// one that has it was promised. It adds no statement if this process knows that the namespace has no
// quota. `age` is how long the promise lasts,
// nil: the request ends now.
func (c *Catalog) reserve(b *batch, u Upload, attempt int64, need UploadNeed, age *time.Duration) *reserved {
	r := new(reserved)
	namespace, _, _ := strings.Cut(u.Repository, "/")
	if c.quotas.IsWithout(namespace) {
		return r
	}
	var d []byte
	if !need.Digest.IsZero() {
		d = need.Digest.Bytes()
	}
	b.Row([]any{&r.n}, "SELECT CASE WHEN purser_accepted() THEN purser_quota_reserve($1, $2, $3, $4, $5, $6, $7) END", u.ID, attempt, namespace, need.Bytes, need.Ahead, d, age)
	return r
}

// ReserveUpload reserves more room for the request that has claimed the upload. It returns how many
// bytes the upload may have, and whether that is beyond the limit, as in UploadClaim. Errors: the same
// as ClaimUpload's.
func (c *Catalog) ReserveUpload(ctx context.Context, u Upload, need UploadNeed) (room int64, beyond bool, err error) {
	b := new(batch)
	r := c.reserve(b, u, u.Attempt, need, new(PromiseAge))
	if b.Len() > 0 {
		err = b.Send(ctx, c.db.Pool)
	}
	if refused := c.quotas.Refusal(ctx, u.Repository, err); oci.IsClientError(refused) {
		return 0, false, refused
	}
	if err != nil {
		return 0, false, fmt.Errorf("reserving room for upload %s: %w", u.ID, err)
	}
	room, beyond = r.room()
	return room, beyond, nil
}

// Promise is what has become of the room that a request was promised.
type Promise int

const (
	PromiseKept Promise = iota // it was renewed
	PromiseOver                // it was over, so the request has to ask again (ReserveUpload)
	PromiseLost                // another request has the upload, or it was cancelled
)

// RenewUpload renews the promise of room to the request that has claimed the upload. It must be
// called well before PromiseAge is over.
func (c *Catalog) RenewUpload(ctx context.Context, u Upload) (Promise, error) {
	var renewed, mine bool
	// If purser_quota_reserve is taking the promise back, the update waits for it, and then doesn't
	// find the promise any more.
	err := c.db.Pool.QueryRow(ctx, `
		WITH renewed AS (
			UPDATE uploads SET promised_until = now() + $3::interval
			WHERE id = $1 AND attempt = $2 AND status = 1 AND promised_until > now()
			RETURNING id
		)
		SELECT EXISTS (SELECT FROM renewed), EXISTS (SELECT FROM uploads WHERE id = $1 AND attempt = $2 AND status = 1)`,
		u.ID, u.Attempt, PromiseAge).Scan(&renewed, &mine)
	switch {
	case err != nil:
		return PromiseKept, fmt.Errorf("renewing the room of upload %s: %w", u.ID, err)
	case renewed:
		return PromiseKept, nil
	case mine:
		return PromiseOver, nil
	}
	return PromiseLost, nil
}

// ReleaseUpload ends the promise to a request that ends without saving or finishing the upload. The
// bytes that the request has stored, with which the upload has u.Size, may be left in the store, so
// they count until the upload ends or is continued.
func (c *Catalog) ReleaseUpload(ctx context.Context, u Upload) error {
	_, err := c.db.Pool.Exec(ctx, "UPDATE uploads SET promised_until = NULL, expected = GREATEST(size, $3) WHERE id = $1 AND attempt = $2",
		u.ID, u.Attempt, u.Size)
	if err != nil {
		return fmt.Errorf("giving back the room of upload %s: %w", u.ID, err)
	}
	return nil
}

// AbandonUpload ends the upload of a request that has got room beyond the limit (UploadClaim.Beyond)
// and fails. Its objects are recorded for deletion. AbandonUpload does nothing if the upload is finished
// or another request has it.
func (c *Catalog) AbandonUpload(ctx context.Context, u Upload) error {
	_, err := c.db.Pool.Exec(ctx, `
		WITH u AS (
			DELETE FROM uploads WHERE id = $1 AND attempt = $2 RETURNING storage_key, GREATEST(size, $3) AS size
		)
		INSERT INTO gc_doomed_objects (storage_key, of_upload, size, again_at)
		SELECT storage_key, true, size, now() + $4::interval FROM u`, u.ID, u.Attempt, u.Size, c.late())
	if err != nil {
		return fmt.Errorf("ending upload %s, for which the quota has no room: %w", u.ID, err)
	}
	return nil
}
