package backup

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/blob/blobtest"
	"github.com/purser-registry/purser/internal/blob/s3"
	"github.com/purser-registry/purser/internal/db"
)

// Blobs move to S3 while the registry serves, and the last pass copies the rest. It is refused
// while a server runs. Afterwards the old store belongs to nobody.
func TestMoveBlobs(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for i := range 5 {
		r.push(fmt.Sprint("v", i), fmt.Sprint("content ", i))
	}
	to, err := s3.New(blobtest.S3Server(t))
	if err != nil {
		t.Fatal(err)
	}
	o := MoveBlobsOptions{Main: r.dsn, From: r.store, FromPlace: "here", Identity: r.id, To: to, ToPlace: "s3://there", Log: quiet}
	pass := func(want int64) {
		t.Helper()
		if res, err := MoveBlobs(t.Context(), o); err != nil || res.Copied != want || res.Missing != 0 || res.Finished != o.Finish {
			t.Fatalf("%+v, %v, want %d copied", res, err, want)
		}
	}
	pass(5)
	pass(0)
	r.push("v5", "content 5")
	o.Finish = true
	r.Exec(t, "INSERT INTO servers (replica, host, settings) VALUES ($1, 'a server', '{}')", uuid.New())
	if _, err := MoveBlobs(t.Context(), o); !errors.Is(err, ErrRunning) {
		t.Errorf("beside a server: %v", err)
	}
	r.Exec(t, "UPDATE servers SET stopped = true")
	// A server that runs while the pass copies may take pushes that the pass doesn't know.
	o.reached = func(step string) {
		if step == "copied" {
			r.Exec(t, "UPDATE servers SET seen_at = clock_timestamp()")
		}
	}
	if _, err := MoveBlobs(t.Context(), o); !errors.Is(err, errRan) {
		t.Errorf("a server ran meanwhile: %v", err)
	}
	if id, err := to.Identity(t.Context()); id == r.id || err != nil {
		t.Errorf("a refused pass has given the new store the identity %q, %v", id, err)
	}
	// A server that starts while the stores are exchanged waits with its record.
	o.reached = func(step string) {
		if step == "locked" {
			err := pgx.BeginFunc(t.Context(), r.DB.Pool, func(tx pgx.Tx) error {
				_, err := tx.Exec(t.Context(), "SET LOCAL lock_timeout = '50ms'")
				if err == nil {
					_, err = tx.Exec(t.Context(), "INSERT INTO servers (replica, host, settings) VALUES (gen_random_uuid(), 'another', '{}')")
				}
				return err
			})
			if db.Code(err) != db.CodeLockNotAvailable {
				t.Errorf("a server starts meanwhile: %v", err)
			}
		}
	}
	pass(0)
	wantObjects(t, r.dsn, to)
	if id, err := to.Identity(t.Context()); id != r.id || err != nil {
		t.Errorf("the new store has the identity %q, %v", id, err)
	}
	if id, err := r.store.Identity(t.Context()); id == r.id || id == "" || err != nil {
		t.Errorf("the old store has the identity %q, %v", id, err)
	}
	full := newStore(t)
	if err := full.Put(t.Context(), blob.NewBase()+"-0", 1, strings.NewReader("x")); err != nil {
		t.Fatal(err)
	}
	o.From, o.To, o.ToPlace, o.Finish = to, full, "full", false
	if _, err := MoveBlobs(t.Context(), o); !errors.Is(err, ErrNotEmpty) {
		t.Errorf("into a store in use: %v", err)
	}
}
