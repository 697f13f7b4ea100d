package backend

import (
	"errors"
	"log/slog"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/db"
)

func TestDatabaseIsWaitedFor(t *testing.T) {
	t.Parallel()
	down := &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	if !db.Unavailable(down) {
		t.Fatal("a refused connection isn't taken for an unavailable database")
	}
	quiet := slog.New(slog.DiscardHandler)
	synctest.Test(t, func(t *testing.T) {
		n := 0
		err := Patiently(t.Context(), new(config.Config), quiet, func() error {
			if n++; n < 5 {
				return down
			}
			return nil
		})
		if err != nil || n != 5 {
			t.Errorf("%v after %d attempts, want success after 5", err, n)
		}
		began := time.Now()
		if err := Patiently(t.Context(), new(config.Config), quiet, func() error { return down }); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("a database that stays away: %v", err)
		}
		if took := time.Since(began); took < databasePatience || took > databasePatience+10*time.Second {
			t.Errorf("gave up after %v, want about %v", took, databasePatience)
		}
		n = 0
		other := errors.New("wrong password")
		if err := Patiently(t.Context(), new(config.Config), quiet, func() error { n++; return other }); !errors.Is(err, other) || n != 1 {
			t.Errorf("%v after %d attempts, want the error at once", err, n)
		}
	})
}
