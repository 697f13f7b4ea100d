package catalog

import (
	"context"
	"crypto/rand"
	"fmt"
	"iter"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// Owner is a row that owns objects of the store.
type Owner struct {
	Kind OwnerKind
	// Key is the object's or, of an upload's objects, their base.
	Key    string
	Digest oci.Digest // a blob's
	Size   int64      // a blob's, in bytes
	Lost   bool       // a blob's: the store is known not to have it
	Keep   string     // what a doomed upload leaves alone; "" for nothing
}

// OwnerKind says which row an Owner is.
type OwnerKind string

// The kinds of owners.
const (
	OwnerUpload       OwnerKind = "upload"
	OwnerBlob         OwnerKind = "blob"
	OwnerDoomed       OwnerKind = "doomed object"
	OwnerDoomedUpload OwnerKind = "doomed upload"
)

// OfUpload says that Key is the base of the objects.
func (o Owner) OfUpload() bool { return o.Kind == OwnerUpload || o.Kind == OwnerDoomedUpload }

// ownersPage is how many owners are fetched at once.
const ownersPage = 1000

// Owners gives every row that owns an object whose key is from or above and below
// to ("": without end), in the order of the bytes of their keys, so that an
// upload comes before the objects that it owns. An error ends the list.
//
// All are of one moment, that of the first row, at which every object had one
// owner. The database has no index by which it could find them in this order: it
// would cost each push one more page to write, for a question that is asked once
// a week. So it reads the blobs once, sorts those in the range, and keeps the
// result as the held cursor of one connection, in temporary files if it is large;
// no snapshot is held while the caller takes its time.
func (c *Catalog) Owners(ctx context.Context, from, to string) iter.Seq2[Owner, error] {
	return func(yield func(Owner, error) bool) {
		conn, err := c.db.Pool.Acquire(ctx)
		if err != nil {
			yield(Owner{}, fmt.Errorf("reading the owners of objects: %w", err))
			return
		}
		defer conn.Release()
		if err := declareOwners(ctx, conn.Conn(), from, to); err != nil {
			yield(Owner{}, fmt.Errorf("reading the owners of objects: %w", err))
			return
		}
		// A connection that is lost has taken the cursor along.
		defer conn.Exec(context.WithoutCancel(ctx), "CLOSE owners") //nolint:errcheck
		for {
			rows, err := conn.Query(ctx, fmt.Sprintf("FETCH %d FROM owners", ownersPage))
			if err != nil {
				yield(Owner{}, fmt.Errorf("reading the owners of objects: %w", err))
				return
			}
			page, err := pgx.CollectRows(rows, scanOwner)
			if err != nil {
				yield(Owner{}, fmt.Errorf("reading the owners of objects: %w", err))
				return
			}
			for _, o := range page {
				if !yield(o, nil) {
					return
				}
			}
			if len(page) < ownersPage {
				return
			}
		}
	}
}

// declareOwners makes the cursor. Its query runs when the transaction commits,
// and may take longer than other statements may.
func declareOwners(ctx context.Context, conn *pgx.Conn, from, to string) error {
	ctx = db.Unhurried(ctx)
	return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if err := db.LiftLimits(ctx, tx); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `
			DECLARE owners NO SCROLL CURSOR WITH HOLD FOR
			SELECT 'blob' AS kind, storage_key, digest, size, lost_at IS NOT NULL AS lost, '' AS keep
			FROM blobs WHERE storage_key >= $1 AND ($2 = '' OR storage_key < $2)
			UNION ALL
			SELECT 'upload', storage_key, NULL, 0, false, ''
			FROM uploads WHERE storage_key >= $1 AND ($2 = '' OR storage_key < $2)
			UNION ALL
			SELECT CASE WHEN of_upload THEN 'doomed upload' ELSE 'doomed object' END, storage_key, NULL, 0, false, COALESCE(keep, '')
			FROM gc_doomed_objects WHERE storage_key >= $1 AND ($2 = '' OR storage_key < $2)
			ORDER BY storage_key, kind`, from, to)
		return err
	})
}

func scanOwner(row pgx.CollectableRow) (Owner, error) {
	var o Owner
	var digest []byte
	if err := row.Scan(&o.Kind, &o.Key, &digest, &o.Size, &o.Lost, &o.Keep); err != nil || digest == nil {
		return o, err
	}
	var err error
	if o.Digest, err = oci.DigestFromBytes(digest); err != nil {
		err = fmt.Errorf("blob with object %s: %w", o.Key, err)
	}
	return o, err
}

// SampleBlobs returns up to n blobs that aren't lost, drawn at random. It leaves out
// imported ones, whose keys other stores may have too.
func (c *Catalog) SampleBlobs(ctx context.Context, n int) ([]Owner, error) {
	const draws = 5 // places in the order of digests
	var list []Owner
	seen := make(map[string]bool)
	for i := range draws + 1 {
		from := []byte{1} // the last draw begins where all do, for those who have few
		if i < draws {
			from = append(from, make([]byte, 32)...)
			rand.Read(from[1:]) // never fails
		}
		rows, err := c.db.Pool.Query(ctx, `
			SELECT 'blob', storage_key, digest, size, false, '' FROM blobs
			WHERE digest >= $1 AND lost_at IS NULL AND position('/' IN storage_key) = 0
			ORDER BY digest LIMIT $2`, from, n/draws)
		if err != nil {
			return nil, fmt.Errorf("drawing some blobs: %w", err)
		}
		page, err := pgx.CollectRows(rows, scanOwner)
		if err != nil {
			return nil, fmt.Errorf("drawing some blobs: %w", err)
		}
		for _, o := range page {
			if !seen[o.Key] && len(list) < n {
				seen[o.Key] = true
				list = append(list, o)
			}
		}
	}
	return list, nil
}

// BlobOwner returns the row of a blob as it is now, false if it is gone.
func (c *Catalog) BlobOwner(ctx context.Context, d oci.Digest) (Owner, bool, error) {
	o := Owner{Kind: OwnerBlob, Digest: d}
	err := c.db.Pool.QueryRow(ctx, "SELECT storage_key, size, lost_at IS NOT NULL FROM blobs WHERE digest = $1", d.Bytes()).
		Scan(&o.Key, &o.Size, &o.Lost)
	switch {
	case isNoRows(err):
		return o, false, nil
	case err != nil:
		return o, false, fmt.Errorf("looking for blob %s: %w", d, err)
	}
	return o, true, nil
}

// Unowned returns those of the keys, each of an object of an upload, that no row
// owns. All owners are looked at by one statement, and so at one moment: an object
// that goes from one to another at this time is seen with one of the two.
//
// It reads all blobs once, so it should be asked for many keys at once.
func (c *Catalog) Unowned(ctx context.Context, keys []string) ([]string, error) {
	list, err := c.scan(ctx, `
		WITH k AS MATERIALIZED (
			SELECT key COLLATE "C" AS key, split_part(key, '-', 1) COLLATE "C" AS base FROM unnest($1::text[]) AS key
		), b AS MATERIALIZED (
			SELECT k.key FROM k JOIN blobs ON blobs.storage_key = k.key
		)
		SELECT key FROM k
		WHERE NOT EXISTS (SELECT FROM b WHERE b.key = k.key)
			AND NOT EXISTS (SELECT FROM uploads u WHERE u.storage_key = k.base)
			AND NOT EXISTS (SELECT FROM gc_doomed_objects d WHERE d.storage_key = k.key)
			AND NOT EXISTS (SELECT FROM gc_doomed_objects d WHERE d.storage_key = k.base AND d.keep IS DISTINCT FROM k.key)
		ORDER BY key`, keys)
	if err != nil {
		return nil, fmt.Errorf("looking for the owners of %d objects: %w", len(keys), err)
	}
	return list, nil
}

// UnownedUploads returns those of the bases that are no upload's in progress, nor
// those of an upload that is to be deleted.
func (c *Catalog) UnownedUploads(ctx context.Context, bases []string) ([]string, error) {
	list, err := c.scan(ctx, `
		SELECT base FROM unnest($1::text[]) AS base
		WHERE NOT EXISTS (SELECT FROM uploads u WHERE u.storage_key = base COLLATE "C")
			AND NOT EXISTS (SELECT FROM gc_doomed_objects d WHERE d.storage_key = base COLLATE "C")
		ORDER BY base`, bases)
	if err != nil {
		return nil, fmt.Errorf("looking for %d uploads: %w", len(bases), err)
	}
	return list, nil
}

// DoomUnowned dooms objects that Unowned returned; they are swept after delay.
// What no row owns no row ever will, since a key gets its owner before its first
// byte: so nothing is looked at again.
func (c *Catalog) DoomUnowned(ctx context.Context, objects []blob.Object, delay time.Duration) error {
	keys, sizes := make([]string, len(objects)), make([]int64, len(objects))
	for i, o := range objects {
		keys[i], sizes[i] = o.Key, o.Size
	}
	_, err := c.scan(ctx, `
		INSERT INTO gc_doomed_objects (storage_key, size, delete_after)
		SELECT key, size, now() + $3::interval FROM unnest($1::text[], $2::bigint[]) AS o (key, size)
		ORDER BY key COLLATE "C"
		ON CONFLICT DO NOTHING
		RETURNING storage_key`, keys, sizes, delay)
	if err != nil {
		return fmt.Errorf("dooming %d objects without an owner: %w", len(objects), err)
	}
	return nil
}

// DoomUnownedUploads dooms what UnownedUploads returned; it is swept after delay.
// An object of such an upload that is a blob's stays.
//
// It reads all blobs once, so it should be asked for many at once.
func (c *Catalog) DoomUnownedUploads(ctx context.Context, bases []string, delay time.Duration) error {
	_, err := c.scan(ctx, `
		WITH k AS MATERIALIZED (
			SELECT base COLLATE "C" AS base FROM unnest($1::text[]) AS base
		), b AS MATERIALIZED (
			SELECT k.base, min(blobs.storage_key) AS key FROM k JOIN blobs ON split_part(blobs.storage_key, '-', 1) = k.base
			GROUP BY k.base
		)
		INSERT INTO gc_doomed_objects (storage_key, of_upload, keep, delete_after)
		SELECT k.base, true, b.key, now() + $2::interval FROM k LEFT JOIN b ON b.base = k.base
		ORDER BY k.base
		ON CONFLICT DO NOTHING
		RETURNING storage_key`, bases, delay)
	if err != nil {
		return fmt.Errorf("dooming %d uploads without an owner: %w", len(bases), err)
	}
	return nil
}

// scan runs a statement that reads whole tables, and returns its rows. It takes
// the time that it needs, and reads each table once: joined row by row it would
// never end.
func (c *Catalog) scan(ctx context.Context, sql string, args ...any) (list []string, err error) {
	ctx = db.Unhurried(ctx)
	err = c.db.Tx(ctx, func(tx pgx.Tx) error {
		if err := db.LiftLimits(ctx, tx); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "SET LOCAL enable_nestloop = off"); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, sql, args...)
		if err != nil {
			return err
		}
		list, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	return list, err
}

// MarkLost tells clients that there are no such blobs, until they are pushed
// again: those of the list that still have the object that they are listed with,
// and aren't marked already. It returns which those are.
func (c *Catalog) MarkLost(ctx context.Context, list []Owner) (map[oci.Digest]bool, error) {
	return c.mark(ctx, list, "now()", "lost_at IS NULL")
}

// MarkFound takes MarkLost back, for blobs of the list that still have the object
// that they are listed with. It returns which those are.
func (c *Catalog) MarkFound(ctx context.Context, list []Owner) (map[oci.Digest]bool, error) {
	return c.mark(ctx, list, "NULL", "lost_at IS NOT NULL")
}

// mark sets lost_at where condition holds. The object is compared, so that a blob
// which was pushed again meanwhile isn't judged by the object that it had. Rows
// are locked in the order of their digests, and nothing else is; a push that holds
// one is waited for. It is background work: the caches of every process hear of
// it, this one's included.
func (c *Catalog) mark(ctx context.Context, list []Owner, value, condition string) (map[oci.Digest]bool, error) {
	digests, keys := make([][]byte, len(list)), make([]string, len(list))
	for i, o := range list {
		digests[i], keys[i] = o.Digest.Bytes(), o.Key
	}
	var changed [][]byte
	err := c.opt.Background.Tx(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SET LOCAL lock_timeout = '10s'"); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, `
			WITH locked AS MATERIALIZED (
				SELECT b.digest FROM (
					SELECT * FROM unnest($1::bytea[], $2::text[]) AS o (digest, key) ORDER BY digest) o
				CROSS JOIN LATERAL (
					SELECT digest FROM blobs
					WHERE digest = o.digest AND storage_key = o.key AND `+condition+`
					FOR NO KEY UPDATE) b
			)
			UPDATE blobs SET lost_at = `+value+` WHERE digest = ANY (ARRAY(SELECT digest FROM locked))
			RETURNING digest`, digests, keys)
		if err != nil {
			return err
		}
		changed, err = pgx.CollectRows(rows, pgx.RowTo[[]byte])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("marking %d blobs: %w", len(list), err)
	}
	marked := make(map[oci.Digest]bool, len(changed))
	for _, b := range changed {
		d, err := oci.DigestFromBytes(b)
		if err != nil {
			return nil, err
		}
		marked[d] = true
	}
	return marked, nil
}

// LongestWrite is after how long nobody writes to an object any more: a younger
// one may be that of a request which lost its upload, and which deletes it.
func (c *Catalog) LongestWrite() time.Duration { return c.late() }
