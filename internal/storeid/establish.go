package storeid

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/worker"
)

// Establish verifies that the store belongs to the database. At the first start of a registry
// it gives both the same new identity; if another process is doing that, Establish waits for
// it. It returns blob.ErrWrongStore if store and database don't belong together.
func (s *Store) Establish(ctx context.Context) error {
	mine := ""
	for {
		known, err := read(ctx, s.opt.DB, s.opt.Lease)
		if err != nil {
			return err
		}
		there, err := s.Store.Identity(ctx)
		if err != nil {
			return err
		}
		switch {
		case there != "" && there == known.ID:
			if done, err := s.confirm(ctx, known); done || err != nil {
				return err
			}
			continue // another process chose a new id meanwhile
		case known.Confirmed || there != "":
			// Another process may have given both an identity after this process read the
			// database and before it read the store.
			again, err := read(ctx, s.opt.DB, s.opt.Lease)
			if err != nil {
				return err
			}
			if again.ID == known.ID && again.Confirmed == known.Confirmed {
				return s.mismatch(known, there)
			}
			continue
		case known.ID != "" && known.ID == mine:
			// The store has no identity, although this process has written one and got no
			// error.
			return fmt.Errorf("the blob store at %s didn't keep the identity that it was given", s.opt.Place)
		case known.ID != "" && !known.chosen:
			if err := worker.Sleep(ctx, poll); err != nil {
				return err
			}
			continue
		}
		if err := s.mayBegin(ctx); err != nil {
			return err
		}
		if mine, err = s.choose(ctx, known); err != nil {
			return err
		}
	}
}

// choose stores a new id in the database, as unconfirmed, and then writes it to the store. It
// returns the id, or "" if another process has stored an id in the database first.
func (s *Store) choose(ctx context.Context, known Known) (string, error) {
	id := uuid.NewString()
	sql := `INSERT INTO store_identity (id, place) SELECT $1::uuid, $2 WHERE $3 = '' ON CONFLICT DO NOTHING`
	if known.ID != "" {
		sql = `UPDATE store_identity SET id = $1::uuid, place = $2, chosen_at = now()
			WHERE id::text = $3 AND confirmed_at IS NULL`
	}
	done, err := s.opt.DB.Pool.Exec(ctx, sql, id, s.opt.Place, known.ID)
	if err != nil {
		return "", fmt.Errorf("choosing an identity for the blob store: %w", err)
	}
	if done.RowsAffected() == 0 {
		return "", nil
	}
	return id, s.write(ctx, id, false)
}

// write writes the identity `id` to the store. It gives up after writeTimeout, which is
// shorter than the time after which another process may choose another id.
func (s *Store) write(ctx context.Context, id string, replace bool) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	return s.Store.SetIdentity(ctx, id, replace)
}

// confirm records in the database that the store has the identity known.ID, and where the
// store is (Options.Place). It returns false if the database has another identity by now.
func (s *Store) confirm(ctx context.Context, known Known) (bool, error) {
	if !known.Confirmed || known.Place != s.opt.Place {
		done, err := s.opt.DB.Pool.Exec(ctx, `
			UPDATE store_identity SET confirmed_at = COALESCE(confirmed_at, now()), place = $2 WHERE id::text = $1`,
			known.ID, s.opt.Place)
		if err != nil {
			return false, fmt.Errorf("confirming the identity of the blob store: %w", err)
		}
		if done.RowsAffected() == 0 {
			return false, nil
		}
	}
	s.mu.Lock()
	s.id, s.last = known.ID, look{began: time.Now()}
	s.mu.Unlock()
	s.wrong.Store(false)
	return true, nil
}

// mismatch returns the error for a store whose identity, `there`, differs from the database's
// identity. The text says how they differ and what the operator can do.
func (s *Store) mismatch(known Known, there string) error {
	at, was := s.opt.Place, ""
	if known.Place != "" && known.Place != at {
		was = ", last at " + known.Place
	}
	switch {
	case known.ID == "":
		return fmt.Errorf("%w: the store at %s has the identity %s and so belongs to another database, while this database is new or was restored "+
			"from a backup that knows no store yet: correct the path, bucket or database; if the store is to go over to this database, "+
			`run "purser store adopt --from %[3]s"`, blob.ErrWrongStore, at, there)
	case there == "":
		return fmt.Errorf("%w: the store at %s has no identity, while the database's store has %s%s: is its volume mounted, and is its path or "+
			`bucket right? If it is the registry's own store, restored or moved without its identity, run "purser store adopt"; `+
			`if the store is lost and there are backups, "purser store restore TARGET"`,
			blob.ErrWrongStore, at, known.ID, was)
	}
	return fmt.Errorf("%w: the store at %s has the identity %s and so belongs to another database, while this database's store has %s%s: "+
		"correct the path, bucket or database; if the store is to go over to this database, "+
		`run "purser store adopt --from %[3]s"`, blob.ErrWrongStore, at, there, known.ID, was)
}

// unfit returns the error for a store without an identity whose objects don't show that it
// belongs to the database.
func (s *Store) unfit(err error) error {
	return fmt.Errorf("%w: neither the store at %s nor the database has an identity yet, and they don't seem to belong together: %w: "+
		`correct the path, bucket or database; if they do belong together, run "purser store adopt --force"`,
		blob.ErrWrongStore, s.opt.Place, err)
}

// mayBegin returns nil if a store without an identity may get one at a start, without an
// operator's command, because the contents of the store and of the database fit together.
func (s *Store) mayBegin(ctx context.Context) error {
	err := s.fits(ctx)
	if errors.Is(err, errUnfit) {
		return s.unfit(err)
	}
	return err
}
