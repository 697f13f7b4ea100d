package storeid

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/check"
	"github.com/purser-registry/purser/internal/oci"
)

const (
	sampleSize     = 100
	sampleParallel = 8
)

// Sample has the number of blobs that were drawn at random from the database (Sampled), how many of
// these have an object of the right size in the store (Found), and of how many nobody can say it, since
// their objects can't be read (Unreadable).
type Sample struct {
	Sampled    int `json:"sampled"`
	Found      int `json:"found"`
	Unreadable int `json:"unreadable,omitempty"`

	failure error
}

// Failure returns the error of the first object that can't be read, nil if there is none.
func (s Sample) Failure() error { return s.failure }

// errUnfit says that the contents of the store and the database don't fit together.
var errUnfit = errors.New("the store and the database don't seem to belong together")

// fits returns nil if the contents of store and database fit together, and errUnfit if they
// don't. They fit if the store has the objects of at least half of a sample of the database's
// blobs. If the database has no blobs, they fit if the database knows at least half of a
// sample of the store's objects. Storage keys are random, so another registry's store has no
// object with such a key. If it depends on objects that can't be read, fits returns that error.
func (s *Store) fits(ctx context.Context) error {
	sample, err := s.sample(ctx)
	switch {
	case err != nil:
		return err
	case sample.Sampled > 0 && 2*sample.Found >= sample.Sampled:
		return nil
	case sample.Sampled > 0 && 2*(sample.Found+sample.Unreadable) >= sample.Sampled:
		return sample.failure
	case sample.Sampled > 0:
		return fmt.Errorf("%w: of %d blobs that the database has, the store has %d", errUnfit, sample.Sampled, sample.Found)
	}
	var keys []string
	for o, err := range s.Store.List(ctx, "") {
		if err != nil {
			return err
		}
		if keys = append(keys, o.Key); len(keys) == sampleSize {
			break
		}
	}
	if len(keys) == 0 {
		return nil
	}
	unowned, err := check.FindUnowned(ctx, s.opt.DB, keys)
	if err != nil {
		return err
	}
	if 2*len(unowned) > len(keys) {
		return fmt.Errorf("%w: the store isn't empty, and the database knows nothing of %d of %d objects in it", errUnfit, len(unowned), len(keys))
	}
	return nil
}

// sample draws some of the database's blobs at random, looks for their objects in the store,
// and returns the numbers.
func (s *Store) sample(ctx context.Context) (Sample, error) {
	rows, err := s.sampleBlobs(ctx, sampleSize)
	if err != nil {
		return Sample{}, err
	}
	var sampled, found atomic.Int64
	var mu sync.Mutex
	var unreadable int
	var failure error
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(sampleParallel)
	for _, row := range rows {
		group.Go(func() error {
			o, err := s.Store.Stat(ctx, row.Key)
			if err == nil && o.Size == row.Size {
				found.Add(1)
			}
			if blob.Unreadable(err) {
				mu.Lock()
				unreadable, failure = unreadable+1, cmp.Or(failure, err)
				mu.Unlock()
				err = nil
			}
			if errors.Is(err, blob.ErrNotFound) {
				// The blob may have been deleted, or have got another object, after it was
				// drawn. Then it doesn't count.
				var now catalog.StoredBlob
				var there bool
				if now, there, err = s.opt.Catalog.StoredBlob(ctx, row.Digest); err == nil && (!there || now.Key != row.Key) {
					return nil
				}
			}
			sampled.Add(1)
			return err
		})
	}
	err = group.Wait()
	return Sample{int(sampled.Load()), int(found.Load()), unreadable, failure}, err
}

// sampleBlobs returns up to n of the database's blobs, drawn at random. It leaves out lost
// blobs. It also leaves out blobs whose objects another registry has written, since other
// stores may have objects with the same keys, unless there are no others.
func (s *Store) sampleBlobs(ctx context.Context, n int) ([]catalog.StoredBlob, error) {
	list, err := s.drawBlobs(ctx, n, "position('/' IN storage_key) = 0")
	if err == nil && len(list) == 0 {
		list, err = s.drawBlobs(ctx, n, "position('/' IN storage_key) > 0")
	}
	return list, err
}

// drawBlobs returns up to n blobs for which the SQL condition is true, drawn at random.
func (s *Store) drawBlobs(ctx context.Context, n int, condition string) ([]catalog.StoredBlob, error) {
	const draws = 5 // starting points in the order of digests
	var list []catalog.StoredBlob
	seen := make(map[string]bool)
	for i := range draws + 1 {
		from := []byte{1} // the last draw starts at the beginning, for registries with few blobs
		if i < draws {
			from = append(from, make([]byte, 32)...)
			rand.Read(from[1:]) // never fails
		}
		rows, err := s.opt.DB.Pool.Query(ctx, `
			SELECT digest, storage_key, size FROM blobs
			WHERE digest >= $1 AND lost_at IS NULL AND `+condition+`
			ORDER BY digest LIMIT $2`, from, n/draws)
		if err != nil {
			return nil, fmt.Errorf("drawing some blobs: %w", err)
		}
		page, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (b catalog.StoredBlob, err error) {
			var digest []byte
			if err = row.Scan(&digest, &b.Key, &b.Size); err == nil {
				b.Digest, err = oci.DigestFromBytes(digest)
			}
			return b, err
		})
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
