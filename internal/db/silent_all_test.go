//go:build all

package db_test

import (
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
)

// The server stops answering while a connection of the pool is idle. When a caller asks for a
// connection, the pool pings the idle connection first. The ping must fail, the pool must
// close the connection, and the caller must get an error.
func TestSilentIdleConnection(t *testing.T) {
	t.Parallel()
	proxy := dbtest.NewProxy(t, dbtest.DSN(t))
	d := openWith(t, db.Options{DSN: proxy.DSN, MaxConns: 1})
	t.Cleanup(proxy.Stop)
	if err := d.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	time.Sleep(1100 * time.Millisecond) // from a second on it is asked
	proxy.Silence()
	ctx := within(t, time.Minute)
	if err := d.Pool.QueryRow(ctx, "SELECT 1").Scan(nil); ctx.Err() != nil || !db.Unavailable(err) {
		t.Errorf("ended with %v, after the test's own limit: %v", err, ctx.Err())
	}
}
