package autoprune_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/autoprune/autoprunetest"
	"github.com/purser-registry/purser/internal/db"
)

// losing is a connection that loses the answer to a commit, after the database has committed, if
// `lose` says so.
type losing struct {
	net.Conn
	lose       func() bool
	deletes    bool // this transaction deletes tags
	committing bool
	lost       bool
}

func (l *losing) Write(p []byte) (int, error) {
	l.deletes = l.deletes || bytes.Contains(p, []byte("autopruneruns SET"))
	if bytes.Contains(p, []byte("commit\x00")) {
		l.committing, l.deletes = l.deletes, false
	}
	return l.Conn.Write(p)
}

func (l *losing) Read(p []byte) (int, error) {
	n, err := l.Conn.Read(p)
	if l.committing && n > 0 { // the database has answered, so it has committed
		l.committing = false
		l.lost = l.lose()
	}
	if l.lost {
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}

// TestCapAfterLostAnswer: a deletion is committed, but its answer is lost, because the process is
// stopping or the connection breaks. Then further tags come. The run must count what it deleted.
func TestCapAfterLostAnswer(t *testing.T) {
	t.Parallel()
	for name, stopping := range map[string]bool{"stopping": true, "connection lost": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := capped(t, 2, 2)
			n.policy(n.app, capOf5)
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			lost := 0
			_, p := n.replica(func(o *autoprune.Options) {
				config := o.Background.Pool.Config()
				dial := config.ConnConfig.DialFunc
				config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
					conn, err := dial(ctx, network, addr)
					return &losing{Conn: conn, lose: func() bool {
						if lost > 0 || n.old() == 4 {
							return false
						}
						if lost++; stopping {
							stop()
						} else {
							n.push(1, "more", 2)
						}
						return true
					}}, err
				}
				pool, err := pgxpool.NewWithConfig(t.Context(), config)
				n.Must(err)
				t.Cleanup(pool.Close)
				o.Background = &db.DB{Pool: db.PoolOver(pool)}
			})
			n.Exec("UPDATE autoprunetaskstatus SET last_ran_ms = NULL")
			_, err := p.Work(ctx) //nolint:errcheck // it may fail or not
			if stopping {
				n.push(1, "more", 2)
			}
			n.run()
			runs := autoprunetest.Values[int64](n.Registry, "SELECT deleted FROM autopruneruns WHERE deleted > 0 ORDER BY started_at")
			if lost != 1 {
				t.Errorf("%d answers were lost: %v", lost, err)
			}
			for _, deleted := range runs {
				if deleted > 5 {
					t.Errorf("runs have deleted %d tags by a policy that may delete 5", runs)
				}
			}
		})
	}
}
