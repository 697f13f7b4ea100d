package blob

import (
	"context"
	"errors"
	"time"
)

// checkTimeout bounds the check of a store's identity.
const checkTimeout = 5 * time.Second

// RefuseWrong returns an error that wraps ErrWrongStore if the store carries another
// database's identity. Any other error of the check is ignored: the storage call that
// follows reports it.
func RefuseWrong(ctx context.Context, store Store) error {
	if store == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	if err := store.Check(ctx); errors.Is(err, ErrWrongStore) {
		return err
	}
	return nil
}
