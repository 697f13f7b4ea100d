package backup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/gc"
	"github.com/purser-registry/purser/internal/oci"
)

// StoreOptions says which store to fill again.
type StoreOptions struct {
	DB     *db.DB // the metadata's database, which needs two connections; required
	Target Target // required
	// Store is the blob store that belongs to the database, or that is to belong to it. Required.
	Store    blob.Store
	Parallel int            // objects that are looked at or copied at the same time; default 4
	Progress func(Progress) // may be nil
	Log      *slog.Logger   // default slog.Default()
}

// StoreRestored says what RestoreStore has done.
type StoreRestored struct {
	Blobs   int64 `json:"blobs"`   // of the database
	There   int64 `json:"there"`   // whose objects the store had
	Objects int64 `json:"objects"` // that were copied
	Bytes   int64 `json:"bytes"`   // of those
	// Missing counts the blobs whose objects neither the store nor the target has, and the lost ones in
	// whose place the store takes no other object.
	Missing      int64         `json:"missing"`
	FirstMissing []MissingBlob `json:"first_missing,omitempty"` // up to 100 of them
}

// MissingBlob is a blob whose object the store lacks.
type MissingBlob struct {
	Digest oci.Digest `json:"digest"`
	Size   int64      `json:"size"` // bytes
}

// RestoreStore copies into the store each object that the database names, that the store lacks or has
// in another size, and that the target has, from whichever backup. It changes nothing in the database.
// Of bytes that the store has, it reads those of blobs that are marked as lost alone, and copies the
// object if they are damaged or can't be read. A server may run. Run again, it goes on.
//
// Why nothing wrong is stored: an object is stored only if its bytes have the digest of the database's
// blob, and an upload has another key. Why nothing is left behind: the session that reads the rows
// keeps objects from being deleted meanwhile, so whoever deletes a row after it was read deletes its
// object after this copy. It returns gc.ErrPausing while a backup runs.
func RestoreStore(ctx context.Context, o StoreOptions) (StoreRestored, error) {
	o.Parallel, o.Log = cmp.Or(o.Parallel, 4), cmp.Or(o.Log, slog.Default())
	to, ok := o.Store.(blob.Putter)
	if !ok {
		return StoreRestored{}, errors.New("the blob store can't take objects under their keys")
	}
	conn, err := o.DB.Pool.Acquire(ctx)
	if err != nil {
		return StoreRestored{}, err
	}
	defer conn.Release()
	if err := gc.PauseSweeps(ctx, conn.Conn()); err != nil {
		return StoreRestored{}, err
	}
	defer gc.ResumeSweeps(ctx, conn.Conn())
	r := &storeRestore{StoreOptions: o, to: to, told: newTeller(o.Progress)}
	err = r.run(ctx, conn.Conn())
	return r.out, err
}

type storeRestore struct {
	StoreOptions
	to   blob.Putter
	told *teller // its lock guards out
	out  StoreRestored
}

// storePage is how many blobs are read from the database at a time.
const storePage = 1000

func (r *storeRestore) run(ctx context.Context, conn *pgx.Conn) error {
	r.told.step("counting blobs")
	var total int64
	if err := conn.QueryRow(ctx, "SELECT count(*) FROM blobs").Scan(&total); err != nil {
		return fmt.Errorf("counting the database's blobs: %w", err)
	}
	r.told.step("copying blobs")
	r.told.total(total)
	for after := ""; ; {
		page, err := readNamed(ctx, conn, after)
		if err != nil || len(page) == 0 {
			return err
		}
		after = page[len(page)-1].key
		group, copying := errgroup.WithContext(ctx)
		group.SetLimit(r.Parallel)
		for _, o := range page {
			group.Go(func() error { return r.object(copying, o) })
		}
		if err := group.Wait(); err != nil {
			return err
		}
	}
}

// named is the object of a blob of the database.
type named struct {
	object
	lost bool // the blob is marked as lost
}

// readNamed returns the objects of the first blobs with keys after `after`.
func readNamed(ctx context.Context, conn *pgx.Conn, after string) ([]named, error) {
	rows, err := conn.Query(ctx, "SELECT storage_key, size, digest, lost_at IS NOT NULL FROM blobs WHERE storage_key > $1 ORDER BY storage_key LIMIT $2", after, storePage)
	if err != nil {
		return nil, fmt.Errorf("reading the database's blobs: %w", err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (o named, err error) {
		if err = row.Scan(&o.key, &o.size, &o.digest, &o.lost); err == nil && (len(o.key) < 3 || newHash(o.digest) == nil) {
			err = fmt.Errorf("a blob of the database has the object %q and the digest %x, which can't be", o.key, o.digest)
		}
		return o, err
	})
}

// object copies an object, unless the store has it.
func (r *storeRestore) object(ctx context.Context, o named) error {
	whole, err := r.has(ctx, o)
	if err != nil {
		return err
	}
	if !whole {
		if err = r.copy(ctx, o); errors.Is(err, errUnusable) {
			return r.missing(ctx, o.object, err)
		}
		if err != nil {
			return fmt.Errorf("copying object %s: %w", o.key, err)
		}
	}
	r.told.change(func(p *Progress) {
		p.Objects++
		r.out.Blobs++
		if whole {
			r.out.There++
			return
		}
		p.Bytes += o.size
		r.out.Objects, r.out.Bytes = r.out.Objects+1, r.out.Bytes+o.size
	})
	return nil
}

// has says whether the store has an object whole. If the blob is marked as lost, its content may have
// decayed, which the size doesn't show, and an object that can't be read isn't whole: it may be why the
// blob is lost. Of other blobs it is an error, since the store may be closed to this process.
func (r *storeRestore) has(ctx context.Context, o named) (bool, error) {
	wrong, err := blob.Look(ctx, r.Store, o.key, o.size)
	if err == nil && (wrong != "" || !o.lost) {
		return wrong == "", nil
	}
	if err == nil {
		err = r.read(ctx, o.object)
	}
	if errors.Is(err, errUnusable) || errors.Is(err, blob.ErrNotFound) || o.lost && blob.Unreadable(err) {
		r.Log.DebugContext(ctx, "the store's object of a lost blob isn't whole", "key", o.key, "error", err)
		return false, nil
	}
	return err == nil, err
}

// read reads the store's object. It returns errUnusable if the object has other bytes.
func (r *storeRestore) read(ctx context.Context, o object) error {
	from, err := r.Store.Open(ctx, o.key, 0, -1)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, newVerifier(o, from))
	return errors.Join(err, from.Close())
}

// copy copies an object into the store. It returns errUnusable if the target lacks it or has other bytes,
// or if the blob is marked as lost and the store can't replace what it has of it.
func (r *storeRestore) copy(ctx context.Context, o named) error {
	from, err := r.Target.Open(ctx, o.file())
	if errors.Is(err, blob.ErrNotFound) {
		return errUnusable
	}
	if err != nil {
		return err
	}
	defer from.Close()
	err = r.to.Put(ctx, o.key, o.size, newVerifier(o.object, from))
	if o.lost && blob.Unreadable(err) {
		return fmt.Errorf("%w, and the store can't replace it: %w", errUnusable, err)
	}
	return err
}

// missing notes that the target can't give an object either.
func (r *storeRestore) missing(ctx context.Context, o object, reason error) error {
	digest, err := oci.DigestFromBytes(o.digest)
	if err != nil {
		return fmt.Errorf("the blob with the object %s: %w", o.key, err)
	}
	r.Log.DebugContext(ctx, "an object can't be copied", "key", o.key, "error", reason)
	r.told.change(func(p *Progress) {
		p.Objects++
		r.out.Blobs++
		if r.out.Missing++; len(r.out.FirstMissing) < maxLost {
			r.out.FirstMissing = append(r.out.FirstMissing, MissingBlob{digest, o.size})
		}
	})
	return nil
}
