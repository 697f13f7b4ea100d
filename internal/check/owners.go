package check

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// Owner is a database row that owns objects in the store.
type Owner struct {
	Kind OwnerKind
	// Key is the storage key of the object. If the row owns all objects of an upload, Key is
	// the prefix of their keys (the upload's base).
	Key    string
	Digest oci.Digest // of a blob
	Size   int64      // of a blob, in bytes
	Lost   bool       // of a blob: it is marked as lost (lost_at)
	Keep   string     // of a doomed upload: the one object that isn't to be deleted; "" for none
}

// OwnerKind says from which table an Owner comes.
type OwnerKind string

// The kinds of owners.
const (
	OwnerUpload       OwnerKind = "upload"
	OwnerBlob         OwnerKind = "blob"
	OwnerDoomed       OwnerKind = "doomed object"
	OwnerDoomedUpload OwnerKind = "doomed upload"
	OwnerForeign      OwnerKind = "foreign object" // that no blob names any more
)

// OfUpload says whether the row owns all objects of an upload, so that Key is a prefix.
func (o Owner) OfUpload() bool { return o.Kind == OwnerUpload || o.Kind == OwnerDoomedUpload }

// ownersPage is how many owner rows one FETCH reads from the cursor.
const ownersPage = 1000

// readOwners returns the rows of blobs, uploads, pending deletions and foreign objects whose storage keys
// are at least `from` and less than `to` ("": no upper limit), in byte order of the keys.
// So the row of an upload comes before rows of objects of this upload, whose keys begin
// with the upload's key. An error ends the sequence.
//
// All rows are read in one snapshot, when the sequence begins; at that moment every object
// had one owner row. The table of blobs has no index in the order of storage keys: each
// push would have to update it, for a query that runs about once a week. So PostgreSQL
// reads the table of blobs once, sorts the rows in the range, and keeps the result in a
// cursor WITH HOLD of one connection, in temporary files if it is large. No snapshot stays
// open while the caller works.
func readOwners(ctx context.Context, pool *db.DB, from, to string) iter.Seq2[Owner, error] {
	return func(yield func(Owner, error) bool) {
		conn, err := pool.Pool.Acquire(ctx)
		if err != nil {
			yield(Owner{}, fmt.Errorf("reading the owners of objects: %w", err))
			return
		}
		defer conn.Release()
		if err := declareOwners(ctx, conn.Conn(), from, to); err != nil {
			yield(Owner{}, fmt.Errorf("reading the owners of objects: %w", err))
			return
		}
		defer conn.Exec(context.WithoutCancel(ctx), "CLOSE owners") //nolint:errcheck // a lost connection has lost its cursor as well
		for {
			rows, err := conn.Query(ctx, "FETCH 1000 FROM owners") // ownersPage
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

// declareOwners declares the cursor from which readOwners reads. The cursor's query runs
// when the transaction commits, and may take longer than the usual time limit of statements.
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
			UNION ALL
			SELECT 'foreign object', storage_key, NULL, 0, false, ''
			FROM gc_foreign_objects WHERE storage_key >= $1 AND ($2 = '' OR storage_key < $2)
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

// FindUnowned returns those of the storage keys that no row owns; each must be the key of
// an object of an upload (BASE-N), or of a file of a finished import. It looks for owners in all tables with one statement,
// and so in one snapshot: it also finds the owner of an object that moves from one owner to
// another meanwhile.
//
// The statement reads the whole table of blobs, so call it once for many keys, not once for
// each of them.
func FindUnowned(ctx context.Context, pool *db.DB, keys []string) ([]string, error) {
	list, err := scan(ctx, pool, `
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

// findUnownedUploads returns those of `bases` (key prefixes of uploads) that belong neither
// to an upload in progress nor to a pending deletion of an upload.
func findUnownedUploads(ctx context.Context, pool *db.DB, bases []string) ([]string, error) {
	list, err := scan(ctx, pool, `
		SELECT base FROM unnest($1::text[]) AS base
		WHERE NOT EXISTS (SELECT FROM uploads u WHERE u.storage_key = base COLLATE "C")
			AND NOT EXISTS (SELECT FROM gc_doomed_objects d WHERE d.storage_key = base COLLATE "C")
		ORDER BY base`, bases)
	if err != nil {
		return nil, fmt.Errorf("looking for %d uploads: %w", len(bases), err)
	}
	return list, nil
}

// recordUnowned inserts a pending deletion for each object, due when the duration `delay`
// is over; FindUnowned must have returned the objects' keys. It needn't look for owners
// again: an object without an owner never gets one, since a key gets its owner before the
// object's first byte.
func recordUnowned(ctx context.Context, pool *db.DB, objects []blob.Object, delay time.Duration) error {
	keys, sizes := make([]string, len(objects)), make([]int64, len(objects))
	for i, o := range objects {
		keys[i], sizes[i] = o.Key, o.Size
	}
	_, err := scan(ctx, pool, `
		INSERT INTO gc_doomed_objects (storage_key, size, delete_after)
		SELECT key, size, now() + $3::interval FROM unnest($1::text[], $2::bigint[]) AS o (key, size)
		ORDER BY key COLLATE "C"
		ON CONFLICT DO NOTHING
		RETURNING storage_key`, keys, sizes, delay)
	if err != nil {
		return fmt.Errorf("queueing %d objects without an owner for deletion: %w", len(objects), err)
	}
	return nil
}

// recordUnownedUploads inserts, for each upload that findUnownedUploads returned, a pending
// deletion of all of its objects, due when the duration `delay` is over. If a blob owns one
// of these objects, this object is kept.
//
// The statement reads the whole table of blobs, so call it once for many bases, not once for
// each of them.
func recordUnownedUploads(ctx context.Context, pool *db.DB, bases []string, delay time.Duration) error {
	_, err := scan(ctx, pool, `
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
		return fmt.Errorf("queueing %d uploads without an owner for deletion: %w", len(bases), err)
	}
	return nil
}

// scan runs a statement that reads whole tables, and returns its rows. It lifts the time
// limits, and forbids nested loops, so that the planner reads each table once: a nested loop
// over all blobs and all keys would never end.
func scan(ctx context.Context, pool *db.DB, sql string, args ...any) (list []string, err error) {
	ctx = db.Unhurried(ctx)
	err = pool.Tx(ctx, func(tx pgx.Tx) error {
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
