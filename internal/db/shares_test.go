package db_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
)

type clientKey struct{}

// as returns a context of a client's statement.
func as(ctx context.Context, client string) context.Context {
	return context.WithValue(ctx, clientKey{}, client)
}

func sharedPool(t *testing.T, conns int, timeout time.Duration) *db.DB {
	t.Helper()
	d, err := db.Open(t.Context(), db.Options{DSN: dbtest.DSN(t), MaxConns: conns, AcquireTimeout: timeout, Log: slog.New(slog.DiscardHandler),
		Share: func(ctx context.Context) (string, bool) {
			client, _ := ctx.Value(clientKey{}).(string)
			return client, !strings.HasPrefix(client, "stranger")
		}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

// A client has three of four connections at most, and the process itself all. While all are in use,
// a client with one statement gets the second that becomes free, although another one's fifty came first.
func TestSharesTakeTurns(t *testing.T) {
	t.Parallel()
	d := sharedPool(t, 4, time.Minute)
	ann, bob, eve := as(t.Context(), "ann"), as(t.Context(), "bob"), as(t.Context(), "eve")
	got := make(chan string, 100)
	release := make(chan struct{})
	var group sync.WaitGroup
	defer group.Wait()
	queue := func(ctx context.Context, client string) {
		group.Go(func() {
			c, err := d.Pool.Acquire(ctx)
			if err != nil {
				t.Errorf("%s gets no connection: %v", client, err)
				return
			}
			defer c.Release()
			got <- client
			<-release
		})
	}
	const many = 50
	for range many {
		queue(ann, "ann")
	}
	for range 3 {
		if client := <-got; client != "ann" {
			t.Fatal(client)
		}
	}
	if n := d.Pool.Stat().AcquiredConns(); n != 3 {
		t.Errorf("one client has %d of 4 connections", n)
	}
	queue(bob, "bob")
	if client := <-got; client != "bob" {
		t.Fatalf("%s has the connection that is left for others", client)
	}
	queue(eve, "eve")
	for db.SharesWaiting(d.Pool) != 2 {
		runtime.Gosched()
	}
	var order []string
	for range 2 {
		release <- struct{}{}
		order = append(order, <-got)
	}
	if fmt.Sprint(order) != "[ann eve]" && fmt.Sprint(order) != "[eve ann]" {
		t.Errorf("the next connections go to %v", order)
	}
	close(release)
	group.Wait()
	if n, waited := d.Pool.Waits(); n < many-3 || waited == 0 {
		t.Errorf("%d waits of %v are counted", n, waited)
	}
	for i := range 4 {
		c, err := d.Pool.Acquire(t.Context())
		if err != nil {
			t.Fatalf("connection %d of the process itself: %v", i+1, err)
		}
		defer c.Release()
	}
}

// While all connections are in use, known clients get them before strangers who came first, but each
// fourth is a stranger's.
func TestSharesKnownComeFirst(t *testing.T) {
	t.Parallel()
	d := sharedPool(t, 2, time.Minute)
	var held []*pgxpool.Conn
	for range 2 {
		c, err := d.Pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, c)
	}
	const each = 8
	got := make(chan string)
	release := make(chan struct{})
	var group sync.WaitGroup
	defer group.Wait()
	for i := range 2 * each {
		name := fmt.Sprint("stranger", i)
		if i >= each {
			name = fmt.Sprint("known", i)
		}
		group.Go(func() {
			c, err := d.Pool.Acquire(as(t.Context(), name))
			if err != nil {
				t.Errorf("%s gets no connection: %v", name, err)
				return
			}
			defer c.Release()
			got <- name
			<-release
		})
		for db.SharesWaiting(d.Pool) != i+1 {
			runtime.Gosched()
		}
	}
	held[0].Release()
	defer held[1].Release()
	var order []string
	for range 2 * each {
		order = append(order, <-got)
		release <- struct{}{}
	}
	strangers := 0
	for _, name := range order[:each] {
		if strings.HasPrefix(name, "stranger") {
			strangers++
		}
	}
	if strangers != each/4 {
		t.Errorf("%d of the first %d connections went to strangers: %v", strangers, each, order)
	}
}

// A client that has its share waits for a connection no longer than others, though one is free.
func TestSharesBoundTheWait(t *testing.T) {
	t.Parallel()
	d := sharedPool(t, 4, 20*time.Millisecond)
	ann := as(t.Context(), "ann")
	for range 3 {
		c, err := d.Pool.Acquire(ann)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Release()
	}
	if _, err := d.Pool.Exec(ann, "SELECT"); !errors.Is(err, db.ErrBusy) {
		t.Errorf("the fourth connection: %v", err)
	}
	if _, err := d.Pool.Exec(as(t.Context(), "bob"), "SELECT"); err != nil {
		t.Errorf("another client: %v", err)
	}
}

// Clients take connections, give them back, give up before and while they wait, and let statements
// fail. Nobody ever has more than the share, and in the end nothing is in use and every connection can
// be had.
func TestSharesStorm(t *testing.T) {
	t.Parallel()
	const conns, clients, each = 4, 6, 150
	d := sharedPool(t, conns, time.Minute)
	var used [clients]atomic.Int32
	var served, gone atomic.Int32
	var group sync.WaitGroup
	for i := range 4 * clients {
		client := i % clients
		group.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 1))
			for range each {
				ctx, cancel := context.WithCancel(as(t.Context(), fmt.Sprint([]string{"client", "stranger"}[client%2], client)))
				switch r.IntN(4) {
				case 0:
					cancel()
				case 1:
					timer := time.AfterFunc(time.Duration(r.IntN(2000))*time.Microsecond, cancel)
					defer timer.Stop()
				}
				c, err := d.Pool.Acquire(ctx)
				if err != nil {
					if !errors.Is(err, context.Canceled) {
						t.Error(err)
					}
					gone.Add(1)
					cancel()
					continue
				}
				if n := used[client].Add(1); n > 3 {
					t.Errorf("a client has %d connections", n)
				}
				if r.IntN(50) == 0 {
					c.Conn().Close(ctx) //nolint:errcheck // the pool opens another one
				}
				if r.IntN(2) == 0 {
					_, _ = c.Exec(ctx, "SELECT pg_sleep(0.001)") // may be given up
				}
				used[client].Add(-1)
				c.Release()
				served.Add(1)
				cancel()
			}
		})
	}
	group.Wait()
	if served.Load() == 0 || gone.Load() == 0 {
		t.Errorf("%d statements were served, %d have given up", served.Load(), gone.Load())
	}
	if n := db.SharesHeld(d.Pool); n != 0 {
		t.Errorf("%d clients are remembered after the storm", n)
	}
	for range conns {
		c, err := d.Pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Release()
	}
}
