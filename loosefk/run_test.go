package loosefk

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// Workers work on two databases in turn, one in each interval of a minute. The clock alone
// must determine the database of an interval, so that all processes work on the same one.
func TestTurns(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	var turns []int64
	for now := start; now.Before(start.Add(4 * time.Minute)); {
		turn, next := turnAt(now, time.Minute)
		if later, _ := turnAt(now.Add(30*time.Second), time.Minute); later != turn {
			t.Errorf("at %s and half a minute later it isn't the same turn", now)
		}
		if next.Sub(now) != time.Minute {
			t.Errorf("after %s the next turn is at %s", now, next)
		}
		turns = append(turns, turn%2)
		now = next
	}
	if turns[0] == turns[1] || turns[0] != turns[2] || turns[1] != turns[3] {
		t.Errorf("two databases have the turns %v", turns)
	}
}

// Run must make runs on the databases that have parents, in turn, and on no other database.
func TestRunTakesTurns(t *testing.T) {
	t.Parallel()
	pool, other, third := newPool(t, oneChild), newPool(t, "CREATE TABLE users (id bigint PRIMARY KEY); CREATE TABLE keys (id bigserial, user_id bigint, PRIMARY KEY (user_id, id))"), newPool(t)
	defs := parse(t, oneDefinition+"\nkeys: [{table: users, column: user_id, on_delete: async_delete}]")
	w := newWorker(t, Options{Definitions: defs, Interval: 20 * time.Millisecond}, install(t, pool, "projects"),
		Database{Name: "third", Pool: third, Tables: []string{"none"}},
		Database{Name: "users", Pool: install(t, other, "users").Pool, Tables: []string{"users", "keys"}})
	family(t, pool, 1, 3)
	exec(t, other, "INSERT INTO users VALUES (1)")
	exec(t, other, "INSERT INTO keys (user_id) VALUES (1), (1)")
	exec(t, other, "DELETE FROM users")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	deadline := time.Now().Add(2 * time.Minute)
	for query[int](t, pool, "SELECT count(*)::int FROM builds")[0]+query[int](t, other, "SELECT count(*)::int FROM keys")[0] > 0 {
		if time.Now().After(deadline) {
			t.Fatal("children are left")
		}
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("the worker ended with %v", err)
	}
}

// If the connection of an advisory lock breaks, the context of the function under the lock
// must end.
func TestAdvisoryLockIsLost(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	db := Database{Name: "main", Pool: pool}
	held, err := AdvisoryLock{}.TryRun(t.Context(), &db, "work", func(ctx context.Context) error {
		again, err := AdvisoryLock{}.TryRun(ctx, &db, "work", func(context.Context) error { return nil })
		if again || err != nil {
			t.Errorf("while it is held it was had again: %v, %v", again, err)
		}
		exec(t, pool, "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())")
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(2 * time.Minute):
			return errors.New("it was not told")
		}
	})
	if !held || err == nil || !strings.Contains(err.Error(), "lock work is lost") {
		t.Errorf("held %v, %v", held, err)
	}
}
