package backend

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/db"
)

// TestStartWaits: a starting server waits for the database and for the blob store while they don't answer: for
// each as long, and it tells for what. Other errors end the wait at once.
func TestStartWaits(t *testing.T) {
	t.Parallel()
	down := &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	if !db.Unavailable(down) {
		t.Fatal("a refused connection isn't taken for an unavailable database")
	}
	quiet := slog.New(slog.DiscardHandler)
	for what, c := range map[string]struct {
		away error
		wait func(ctx context.Context, fn func() error) error
	}{
		"the database, which isn't available: ": {down, func(ctx context.Context, fn func() error) error {
			return Patiently(ctx, new(config.Config), quiet, fn)
		}},
		"the blob store, which doesn't answer: ": {fmt.Errorf("trying the blob store: %w", &awayError{down}), func(ctx context.Context, fn func() error) error {
			return await(ctx, quiet, "the blob store", "doesn't answer", isAway, fn)
		}},
	} {
		synctest.Test(t, func(t *testing.T) {
			n, told := 0, ""
			ctx := TellWaits(t.Context(), func(what string) { told = what })
			err := c.wait(ctx, func() error {
				if n++; n < 5 {
					return c.away
				}
				return nil
			})
			if err != nil || n != 5 || !strings.HasPrefix(told, what) {
				t.Errorf("%s%v after %d attempts, told %q; want success after 5", what, err, n, told)
			}
			began := time.Now()
			if err := c.wait(ctx, func() error { return c.away }); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("%sstays away: %v", what, err)
			}
			if took := time.Since(began); took < time.Minute || took > time.Minute+10*time.Second {
				t.Errorf("%sgave up after %v, want about a minute", what, took)
			}
			n = 0
			other := errors.New("wrong password")
			if err := c.wait(ctx, func() error { n++; return other }); !errors.Is(err, other) || n != 1 {
				t.Errorf("%s%v after %d attempts, want the error at once", what, err, n)
			}
		})
	}
}
