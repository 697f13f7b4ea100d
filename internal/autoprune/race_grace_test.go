package autoprune_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/db"
)

// TestAnnouncementWhileNamespaceIsDeleted: while a transaction has locked the namespace to delete
// it, the end of a run must not wait for that lock, since it has locked the task.
func TestAnnouncementWhileNamespaceIsDeleted(t *testing.T) {
	t.Parallel()
	announced := make(chan error, 1)
	n := announcing(t)
	_, pruner := n.replica(func(o *autoprune.Options) {
		o.Notify = func(context.Context, db.Querier, string, any) error {
			announced <- nil
			return nil
		}
	})
	n.repositories(1)
	n.policy(policies.Target{Namespace: "app"}, inGrace)
	deletion, err := n.DB.Pool.Begin(t.Context())
	n.Must(err)
	defer deletion.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // the test is over
	_, err = deletion.Exec(t.Context(), "SELECT FROM top_level_namespaces WHERE name = 'app' FOR UPDATE")
	n.Must(err)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	go func() {
		_, err := pruner.Work(ctx)
		announced <- errors.Join(errors.New("the run ended without an announcement"), err)
	}()
	n.Must(<-announced)
}
