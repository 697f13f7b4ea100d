package blob

import (
	"context"
	"errors"
	"time"
)

// checkTimeout limits the time of RefuseWrong's check.
const checkTimeout = 5 * time.Second

// RefuseWrong calls the store's Check, and returns Check's error if it wraps ErrWrongStore:
// the store then isn't mounted or doesn't belong to this database. It ignores any other error
// of Check, since the caller's next operation on the store returns such an error too. It
// returns nil for a nil store.
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
