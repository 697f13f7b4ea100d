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

// Owner is a database row that owns objects in the store.
type Owner struct {
	Kind OwnerKind
	// Key is the key of the object; for a row that owns all objects of an upload, their
	// base.
	Key    string
	Digest oci.Digest // of a blob
	Size   int64      // of a blob, in bytes
	Lost   bool       // of a blob: the store is known to have lost its object
	Keep   string     // the object of a doomed upload that isn't deleted; "" for none
}

// OwnerKind says from which table an Owner comes.
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

// Owners returns every row that owns an object whose key is >= from and < to ("": no limit),
// in byte order of the keys, so that an upload comes before the objects that it owns. An
// error ends the sequence.
//
// All rows belong to one moment, at which every object had one owner: when the sequence
// begins. The database has no index in this order: maintaining it would cost each push
// another page write, for a query that runs once a week. So PostgreSQL reads the blobs once,
// sorts those in the range, and keeps the result as a cursor WITH HOLD of one connection, in
// temporary files if it is large. No snapshot is held while the caller works.
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
		defer conn.Exec(context.WithoutCancel(ctx), "CLOSE owners") //nolint:errcheck // a lost connection has lost its cursor as well
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

// declareOwners makes the cursor. Its query runs when the transaction commits, and may take
// longer than the usual time limit of statements.
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

// SampleBlobs returns up to n blobs drawn at random. It leaves out lost blobs, and imported
// ones, whose keys other stores may have too.
func (c *Catalog) SampleBlobs(ctx context.Context, n int) ([]Owner, error) {
	const draws = 5 // starting points in the order of digests
	var list []Owner
	seen := make(map[string]bool)
	for i := range draws + 1 {
		from := []byte{1} // the last draw starts at the beginning, for registries with few blobs
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

// BlobOwner returns a blob's current row, false if it is gone.
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

// Unowned returns those of the keys, each of an object of an upload, that no row owns. One
// statement reads all owners, and so sees one moment: an object that moves from one owner to
// another meanwhile is seen with one of them.
//
// It reads all blobs once, so call it with many keys.
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

// UnownedUploads returns those of the bases that belong neither to an upload in progress nor
// to one that is waiting for deletion.
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

// DoomUnowned records objects that Unowned returned for deletion after delay. It checks
// nothing again: an object without an owner never gets one, since a key gets its owner
// before the object's first byte.
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

// DoomUnownedUploads records the uploads that UnownedUploads returned for deletion after
// delay. If an object of such an upload is a blob's, that object stays.
//
// It reads all blobs once, so call it with many bases.
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

// scan runs a statement that reads whole tables, and returns its rows. It lifts the time
// limits, and has the planner read each table once: a nested loop over all rows would never
// end.
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

// MarkLost marks those blobs of the list as lost that still have the object of their Owner
// and aren't marked already; clients are told that they don't exist, until they are pushed
// again. It returns the blobs that it marked.
func (c *Catalog) MarkLost(ctx context.Context, list []Owner) (map[oci.Digest]bool, error) {
	return c.mark(ctx, list, "now()", "lost_at IS NULL")
}

// MarkFound removes the mark of MarkLost from those blobs of the list that still have the
// object of their Owner. It returns those blobs.
func (c *Catalog) MarkFound(ctx context.Context, list []Owner) (map[oci.Digest]bool, error) {
	return c.mark(ctx, list, "NULL", "lost_at IS NOT NULL")
}

// mark sets lost_at of the rows that meet condition. It compares the object's key, so that a
// blob which was pushed again meanwhile isn't judged by its former object. It locks the rows
// in the order of their digests, and nothing else, and waits for a push that has locked one.
// It uses the background pool, so that the caches of all processes, including this one, are
// notified.
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

// LongestWrite returns the time after which nobody writes to an object any more. A younger
// object may belong to a request that lost its upload and will delete the object.
func (c *Catalog) LongestWrite() time.Duration { return c.late() }
