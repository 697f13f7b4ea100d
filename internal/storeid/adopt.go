package storeid

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/blob"
)

// AdoptOptions says what an adoption may override.
type AdoptOptions struct {
	// From is the identity that the store has now. Adopt requires it if this identity belongs
	// to another database, because the adoption takes the store away from that database.
	From string
	// New gives database and store a new identity. A database that was copied from another
	// database needs a new identity, since the copy has the original's identity.
	New bool
	// Force adopts the store even if it doesn't have the database's blobs, or if its identity
	// can't be parsed.
	Force bool
	// Adopt calls Begin, if it isn't nil, before it changes anything, and passes a description
	// of the adoption. If Begin returns an error, Adopt changes nothing and returns the error.
	Begin func(Adoption) error
}

// Adoption describes an adoption.
type Adoption struct {
	Place    string `json:"place"`
	Identity string `json:"identity"` // of both database and store, from now on
	Was      string `json:"was"`      // the store's identity before, "" for none
	Changed  bool   `json:"changed"`  // false: they had the same identity already
	Sample
}

// Adopt gives the store the database's identity. If o.New is set, or if the database has no
// identity, it gives a new identity to both the store and the database. It returns
// blob.ErrWrongStore, with the reason, if the store seems to belong to another database and
// the options don't allow the adoption.
func (s *Store) Adopt(ctx context.Context, o AdoptOptions) (Adoption, error) {
	known, there, err := s.identities(ctx, o)
	a := Adoption{Place: s.opt.Place, Identity: known.ID, Was: there}
	if err != nil {
		return a, err
	}
	if there != "" && there == known.ID && !o.New {
		_, err := s.confirm(ctx, known)
		return a, err
	}
	if a.Sample, err = s.sample(ctx); err != nil {
		return a, err
	}
	if !o.Force && (there == "" || there != known.ID) {
		if err := s.fits(ctx); errors.Is(err, errUnfit) {
			return a, fmt.Errorf("%w: %w. If you are sure that this is the registry's store, or the one that it is to use from now on, add --force",
				blob.ErrWrongStore, err)
		} else if err != nil {
			return a, err
		}
	}
	if a.Identity == "" || o.New {
		a.Identity = uuid.NewString()
	}
	a.Changed = true
	if o.Begin != nil {
		if err := o.Begin(a); err != nil {
			return a, err
		}
	}
	return a, s.adopt(ctx, known, a.Identity)
}

// Adoptable returns the error of Adopt for a store that belongs to another database, or whose identity
// can't be read. It looks at no objects and changes nothing.
func (s *Store) Adoptable(ctx context.Context, o AdoptOptions) error {
	_, _, err := s.identities(ctx, o)
	return err
}

// identities returns the identities of the database and of the store, and an error if the options
// don't allow the adoption of a store with this identity.
func (s *Store) identities(ctx context.Context, o AdoptOptions) (known Known, there string, err error) {
	if known, err = read(ctx, s.opt.DB, s.opt.Lease); err != nil {
		return known, "", err
	}
	if there, err = s.Store.Identity(ctx); err != nil && !(o.Force && errors.Is(err, blob.ErrDamagedIdentity)) {
		return known, "", err
	}
	if there != "" && there != known.ID && there != o.From {
		return known, there, fmt.Errorf("%w: the store at %s has the identity %s and so belongs to another database. Registries on that database stop "+
			"writing when this one takes it. If you are sure that this is wanted, add --from %[3]s", blob.ErrWrongStore, s.opt.Place, there)
	}
	return known, there, nil
}

// adopt writes the identity `id` to the database, as unconfirmed, then to the store, and
// then confirms it in the database. It skips the first step if the database has this id
// already. If the process dies after the store got the id, the next process that starts
// confirms it. If the process dies earlier, the next process refuses the store, and an
// operator can adopt the store again; but if the store has no identity and the database's
// id is unconfirmed, the next process continues as at the first start of a registry (see
// Establish).
func (s *Store) adopt(ctx context.Context, known Known, id string) error {
	if id != known.ID {
		done, err := s.opt.DB.Pool.Exec(ctx, `
			INSERT INTO store_identity AS i (id, place) VALUES ($1, $2)
			ON CONFLICT (one) DO UPDATE SET id = EXCLUDED.id, place = EXCLUDED.place, chosen_at = now(), confirmed_at = NULL
			WHERE i.id::text = $3`, id, s.opt.Place, known.ID)
		if err != nil {
			return fmt.Errorf("giving the database an identity: %w", err)
		}
		if done.RowsAffected() == 0 {
			return errMoved
		}
		known = Known{ID: id}
	}
	if err := s.write(ctx, id, true); err != nil {
		return err
	}
	there, err := s.Store.Identity(ctx)
	if err != nil {
		return err
	}
	if there != id {
		return fmt.Errorf("%w: another process has given the store at %s the identity %s meanwhile", blob.ErrWrongStore, s.opt.Place, there)
	}
	if done, err := s.confirm(ctx, known); err != nil || done {
		return err
	}
	return errMoved
}

var errMoved = errors.New("another process has changed the database's identity meanwhile: see \"purser store show\", and try again")
