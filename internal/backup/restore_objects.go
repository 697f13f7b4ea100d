package backup

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// inspect reads the files and the objects of the backup and compares them with their sizes and digests,
// before the restore changes anything. It counts the objects that can't be restored in r.expected, those
// of blobs that were lost before the backup included. If the restore `goesOn` after it was interrupted,
// inspect skips the objects that are copied already.
func (r *restore) inspect(ctx context.Context, goesOn bool) error {
	if err := verifyFiles(ctx, r.Target, r.m, r.told); err != nil {
		return err
	}
	if r.Keep || r.note.Loaded {
		return nil
	}
	o := VerifyOptions{Target: r.Target, Manifest: r.m, Deep: true, Parallel: r.Parallel}
	if goesOn {
		o.copied = func(ctx context.Context, ob object) (bool, error) {
			wrong, err := blob.Look(ctx, r.Store, ob.key, ob.size)
			return wrong == "", err
		}
	}
	v, err := verifyObjects(ctx, o, r.told)
	if err != nil {
		return err
	}
	o.Manifest = r.m.ofLost()
	before, err := verifyObjects(ctx, o, r.told)
	if err != nil {
		return err
	}
	r.expected = v.Missing + before.Missing
	// The backup says itself which objects the store lacked when it was made. More than half of the
	// others don't get lost one by one.
	unexpected := v.Missing - r.m.Blobs.Missing
	all := v.Objects + r.m.Lost.Count
	lack := fmt.Sprintf("%s lacks %d of the %d objects of backup %s, or has other bytes", r.Target.Place(), r.expected, all, r.m.ID)
	switch {
	case r.expected == 0:
		return nil
	case r.Strict:
		return fmt.Errorf("%w: %s, such as %s: nothing was restored", ErrDamaged, lack, append(v.FirstMissing, before.FirstMissing...)[0])
	case 2*unexpected > v.Objects-r.m.Blobs.Missing && !r.Force:
		return fmt.Errorf("%w: %s, such as %s: is its directory objects there, and its volume mounted? Nothing was restored. "+
			"To restore the rest nevertheless, add --force", ErrDamaged, lack, v.FirstMissing[0])
	}
	r.Log.WarnContext(ctx, "the backup lacks objects, or has other bytes: their blobs will be marked as lost", "objects", r.expected, "of", all)
	return nil
}

// objects copies the objects into the store, except those that it has from an earlier attempt.
func (r *restore) objects(ctx context.Context) error {
	to, ok := r.Store.(blob.Putter)
	if !ok {
		return errors.New("the blob store can't take objects under their keys")
	}
	r.told.step("copying blobs")
	r.told.total(r.m.Blobs.Count + r.m.Lost.Count)
	if err := r.listed(ctx, to, r.m, false); err != nil {
		return err
	}
	if err := r.listed(ctx, to, r.m.ofLost(), true); err != nil {
		return err
	}
	return r.lost.flush(ctx)
}

// listed copies the objects of a list. If their blobs `wereLost` before the backup, it notes those
// whose objects the store has then.
func (r *restore) listed(ctx context.Context, to blob.Putter, m *Manifest, wereLost bool) error {
	list := openObjects(ctx, r.Target, m)
	defer list.r.Close()
	group, copying := errgroup.WithContext(ctx)
	group.SetLimit(r.Parallel)
	for copying.Err() == nil {
		some, err := list.group()
		if err != nil || len(some) == 0 {
			return errors.Join(err, group.Wait())
		}
		for _, o := range some {
			group.Go(func() error {
				copied, there, err := r.object(copying, to, o)
				if there && wereLost {
					_, err = r.lost.add(copying, o.digest, true)
				}
				r.told.change(func(p *Progress) {
					if p.Objects++; copied {
						p.Bytes += o.size
						r.out.Objects++
					}
				})
				return err
			})
		}
	}
	return errors.Join(group.Wait(), ctx.Err())
}

// object copies an object into the store, unless the store has it. It returns whether it did, and
// whether the object is there then.
func (r *restore) object(ctx context.Context, to blob.Putter, o object) (copied, there bool, err error) {
	if err := r.reached("object"); err != nil {
		return false, false, err
	}
	if wrong, err := blob.Look(ctx, r.Store, o.key, o.size); err != nil || wrong == "" {
		return false, err == nil, err
	}
	from, err := r.Target.Open(ctx, o.file())
	if errors.Is(err, blob.ErrNotFound) || errors.Is(err, errUnusable) {
		return false, false, r.lose(ctx, o, err)
	}
	if err != nil {
		return false, false, err
	}
	defer from.Close()
	err = to.Put(ctx, o.key, o.size, newVerifier(o, from))
	if errors.Is(err, errUnusable) {
		return false, false, r.lose(ctx, o, err)
	}
	return err == nil, err == nil, err
}

// lose notes that the object of a blob can't be restored. If there are more such objects than inspect
// has found, the backup has changed meanwhile: its volume may have been unmounted. Then all that it
// lacks now must not be taken for lost.
func (r *restore) lose(ctx context.Context, o object, reason error) error {
	n, err := r.lost.add(ctx, o.digest, false)
	if err == nil && n > r.expected {
		err = fmt.Errorf("%w: %s has lost objects since the restore has read it, such as %s (%w): make sure that it is whole, and run the restore again, which goes on",
			ErrDamaged, r.Target.Place(), o.key, reason)
	}
	return err
}

// lostBlobs are the blobs whose objects can't be restored, and those that were lost before the backup
// and whose objects were restored. They are kept in a temporary table of the session that loads the
// rows, since there may be many.
type lostBlobs struct {
	conn  *pgx.Conn
	mu    sync.Mutex
	rest  [][]byte // digests that aren't in the table yet
	there []bool   // of rest: the object was restored
	made  bool     // the table exists
	n     int64    // without those that were restored
}

// lostBatch is how many digests lostBlobs writes by one statement.
const lostBatch = 1000

// add adds a blob and returns how many there are now whose objects can't be restored. `there` says that
// this one's object was.
func (l *lostBlobs) add(ctx context.Context, digest []byte, there bool) (int64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !there {
		l.n++
	}
	l.there = append(l.there, there)
	if l.rest = append(l.rest, digest); len(l.rest) < lostBatch {
		return l.n, nil
	}
	return l.n, l.write(ctx)
}

// flush writes the last digests into the table.
func (l *lostBlobs) flush(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.write(ctx)
}

func (l *lostBlobs) write(ctx context.Context) error {
	if len(l.rest) == 0 {
		return nil
	}
	if !l.made {
		if _, err := l.conn.Exec(ctx, "CREATE TEMPORARY TABLE purser_restore_lost (digest bytea, there boolean)"); err != nil {
			return fmt.Errorf("making a table of the blobs that can't be restored: %w", err)
		}
		l.made = true
	}
	if _, err := l.conn.Exec(ctx, "INSERT INTO pg_temp.purser_restore_lost SELECT * FROM unnest($1::bytea[], $2::boolean[])", l.rest, l.there); err != nil {
		return fmt.Errorf("noting the blobs that can't be restored: %w", err)
	}
	l.rest, l.there = l.rest[:0], l.there[:0]
	return nil
}

// mark marks the blobs as lost or as found, in the transaction that has loaded their rows.
func (l *lostBlobs) mark(ctx context.Context, tx pgx.Tx) error {
	if !l.made {
		return nil
	}
	if _, err := tx.Exec(ctx, "UPDATE blobs SET lost_at = now() WHERE digest IN (SELECT digest FROM pg_temp.purser_restore_lost WHERE NOT there) AND lost_at IS NULL"); err != nil {
		return fmt.Errorf("marking the blobs that can't be restored: %w", err)
	}
	if _, err := tx.Exec(ctx, "UPDATE blobs SET lost_at = NULL WHERE digest IN (SELECT digest FROM pg_temp.purser_restore_lost WHERE there) AND lost_at IS NOT NULL"); err != nil {
		return fmt.Errorf("marking the blobs as found whose objects were restored: %w", err)
	}
	return nil
}

// countLost returns how many blobs are marked as lost. In a backup of an earlier version, without a list
// of them, their rows alone tell it.
func countLost(ctx context.Context, tx pgx.Tx) (n int64, err error) {
	if err := tx.QueryRow(ctx, "SELECT count(*) FROM blobs WHERE lost_at IS NOT NULL").Scan(&n); err != nil {
		return 0, fmt.Errorf("counting the lost blobs: %w", err)
	}
	return n, nil
}

// maxLost bounds Restored.FirstLost.
const maxLost = 100

// namesOfLost returns the first of the n blobs that are marked as lost.
func namesOfLost(ctx context.Context, d *db.DB, n int64) ([]LostBlob, error) {
	rows, err := d.Pool.Query(ctx, `
		SELECT b.digest, b.size, ARRAY(
			SELECT r.path FROM repository_blobs rb JOIN named_repositories r ON r.id = rb.repository_id AND r.top_level_namespace_id = rb.top_level_namespace_id
			WHERE rb.blob_digest = b.digest ORDER BY r.path LIMIT 3)
		FROM (SELECT digest, size FROM blobs WHERE lost_at IS NOT NULL ORDER BY lost_at DESC, digest LIMIT $1) b`, min(n, maxLost))
	if err != nil {
		return nil, fmt.Errorf("listing the lost blobs: %w", err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (l LostBlob, err error) {
		var digest []byte
		if err = row.Scan(&digest, &l.Size, &l.Repositories); err == nil {
			l.Digest, err = oci.DigestFromBytes(digest)
		}
		return l, err
	})
}
