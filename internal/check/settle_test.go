package check_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/check"
)

// away is a store that has another database's identity.
type away struct{ blob.Store }

func (away) Check(context.Context) error { return fmt.Errorf("the volume: %w", blob.ErrWrongStore) }

// The store has another database's identity, but it would let its objects be deleted. A
// repair must change nothing, even with Force. A check without repair must succeed.
func TestNothingIsRepairedWithAWrongStore(t *testing.T) {
	t.Parallel()
	b := setupStore(t)
	b.old(b.object(5))
	store := away{b.store}
	if _, err := check.Run(t.Context(), check.Options{Catalog: b.catalog, Store: store, Repair: true, Force: true}); !errors.Is(err, blob.ErrWrongStore) {
		t.Errorf("repairing: %v", err)
	}
	if n := b.doomed(); n != 0 {
		t.Errorf("%d objects are to be deleted", n)
	}
	if _, err := check.Run(t.Context(), check.Options{Catalog: b.catalog, Store: store}); err != nil {
		t.Errorf("a check that only looks: %v", err)
	}
}
