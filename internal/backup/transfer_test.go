package backup

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
)

// The rows of a stopped registry go to another database. A transfer that is interrupted at its
// end, after which the old registry changes, must begin again with the rows as they are then.
func TestTransfer(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.push("v1", "content")
	o := TransferOptions{
		From: r.dsn, To: dbtest.EmptyDSN(t), Store: r.store, Identity: r.id, Place: "here", Purser: "test", Log: quiet,
		Scratch:   filepath.Join(t.TempDir(), "rows"),
		BeforeEnd: func(context.Context) error { return errKilled },
	}
	if _, err := Transfer(t.Context(), o); !errors.Is(err, errKilled) {
		t.Fatal(err)
	}
	r.push("v2", "content that came later")
	want := dump(t, r.dsn)
	o.BeforeEnd = func(ctx context.Context) error {
		if _, err := db.Migrate(ctx, o.To, db.MigrateOptions{}); !errors.Is(err, db.ErrRestoring) {
			t.Errorf("a server that starts too early: %v", err)
		}
		return db.MarkMoved(ctx, r.DB.Pool, "to there")
	}
	if res, err := Transfer(t.Context(), o); err != nil || res.Rows == 0 {
		t.Fatalf("%+v, %v", res, err)
	}
	wantSame(t, dump(t, o.To), want)
	if _, err := db.Migrate(t.Context(), o.To, db.MigrateOptions{}); err != nil {
		t.Errorf("a server that starts on the new database: %v", err)
	}
	if _, err := db.Migrate(t.Context(), r.dsn, db.MigrateOptions{}); !errors.Is(err, db.ErrMoved) {
		t.Errorf("a server that starts on the old one: %v", err)
	}
	if _, err := os.Stat(o.Scratch); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the rows are left: %v", err)
	}
}
