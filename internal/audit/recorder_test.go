package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sync/errgroup"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
)

func metrics(t testing.TB) *Metrics {
	t.Helper()
	m := NewMetrics(prometheus.NewRegistry())
	return m
}

// counts compares the recorder's metrics with the wanted numbers of written and dropped
// pulls.
func (m *Metrics) counts(t testing.TB, written, full, unfit, closed int) {
	t.Helper()
	got := fmt.Sprint(testutil.ToFloat64(m.written), testutil.ToFloat64(m.dropped.WithLabelValues(droppedFull)),
		testutil.ToFloat64(m.dropped.WithLabelValues(droppedUnfit)), testutil.ToFloat64(m.dropped.WithLabelValues(droppedClosed)))
	if want := fmt.Sprint(float64(written), float64(full), float64(unfit), float64(closed)); got != want {
		t.Errorf("written, full, unfit, closed are %s, want %s", got, want)
	}
}

// Three recorders write to one audit log at the same time. The table must have each of
// their entries exactly once.
func TestRecorders(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	var recorders []*Recorder
	var group errgroup.Group
	m := metrics(t)
	for i := range 3 {
		r := NewRecorder(RecorderOptions{DB: d, Log: quiet, Metrics: m, Every: 5 * time.Millisecond, Batch: 50})
		stop := start(t, r.Run)
		recorders = append(recorders, r)
		for g := range 4 {
			group.Go(func() error {
				for n := range 500 {
					e := pull(n)
					e.Tag = fmt.Sprintf("r%d-g%d-n%d", i, g, n)
					r.Record(t.Context(), e)
				}
				return nil
			})
		}
		defer stop()
	}
	must(t, group.Wait())
	for _, r := range recorders {
		must(t, r.Close(t.Context()))
		if r.Pending() != 0 || r.Dropped() != 0 {
			t.Errorf("%d are pending, %d dropped", r.Pending(), r.Dropped())
		}
	}
	if n := count(t, d, "SELECT count(DISTINCT tag) FROM auditlog"); n != 6000 {
		t.Errorf("%d pulls are in the log, want 6000", n)
	}
	if n := count(t, d, "SELECT count(*) FROM auditlog"); n != 6000 {
		t.Errorf("%d entries are in the log, want 6000", n)
	}
	m.counts(t, 6000, 0, 0, 0)
}

// A single pull doesn't fill a batch. The recorder must write it nevertheless, after
// Every.
func TestRecorderDoesNotWaitForABatch(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	r := NewRecorder(RecorderOptions{DB: d, Log: quiet, Every: 5 * time.Millisecond})
	start(t, r.Run)
	ctx := WithSource(t.Context(), Source{Actor: "ana", Address: "192.0.2.1"})
	before := time.Now()
	r.Record(ctx, Entry{Kind: PullRepo, Repository: "acme/app"})
	eventually(t, "the pull is written", func() bool { return r.Pending() == 0 })
	e := one(t, d)
	if e.Actor != "ana" || e.Address != "192.0.2.1" || e.Namespace != "acme" || e.Time.Before(before.Add(-time.Second)) || e.Time.After(time.Now()) {
		t.Errorf("the entry is %+v", e)
	}
}

// More pulls come than the buffer can hold. The recorder must count exactly those that it
// drops, and write all others.
func TestRecorderOverflow(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	m := metrics(t)
	r := NewRecorder(RecorderOptions{DB: d, Log: quiet, Metrics: m, Buffer: 1000, Batch: 300, Join: -1})
	var group errgroup.Group
	for range 7 {
		group.Go(func() error {
			for n := range 500 {
				r.Record(t.Context(), pull(n))
			}
			return nil
		})
	}
	must(t, group.Wait())
	if r.Pending() != 1000 || r.Dropped() != 2500 {
		t.Errorf("%d are pending, %d dropped; want 1000, 2500", r.Pending(), r.Dropped())
	}
	must(t, r.Close(t.Context()))
	r.Record(t.Context(), pull(1))
	must(t, r.Close(t.Context()))
	if n := count(t, d, "SELECT count(*) FROM auditlog"); n != 1000 || r.Dropped() != 2501 {
		t.Errorf("%d are written, %d dropped; want 1000, 2501", n, r.Dropped())
	}
	m.counts(t, 1000, 2500, 0, 1)
	var none *Recorder // nil: the log is switched off
	none.Record(t.Context(), pull(1))
	if must(t, none.Close(t.Context())); none.Pending() != 0 || none.Dropped() != 0 {
		t.Error("no recorder has entries")
	}
}

// TestPullsBesideAFlood: the pulls and HEADs of one namespace fill the buffer. Those of another one must
// still be taken and written, and those of a third too.
func TestPullsBesideAFlood(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	r := NewRecorder(RecorderOptions{DB: d, Log: quiet, Buffer: 1000, Join: -1})
	of := func(repository string, n int) Entry {
		e := pull(n)
		e.Repository = repository
		return e
	}
	record := func(repository string, want int) {
		t.Helper()
		for n := range 20 {
			if !r.RecordHead(t.Context(), of(repository, n)) || !r.Record(t.Context(), of(repository, n)) {
				t.Fatalf("pull %d of %s is dropped", n, repository)
			}
		}
		if n := r.Pending(); n != want {
			t.Errorf("%d are pending, want %d", n, want)
		}
	}
	for n := range 2000 {
		r.RecordHead(t.Context(), of("flood/app", n))
	}
	record("acme/app", 540) // HEADs have half of the buffer
	for n := range 2000 {
		r.Record(t.Context(), of("flood/app", n))
	}
	record("zoo/app", 1040)
	if r.Offer(t.Context(), of("flood/app", 1)) || r.RecordHead(t.Context(), of("flood/app", 1)) {
		t.Error("the namespace that has filled the buffer gets more")
	}
	must(t, r.Close(t.Context()))
	if n := count(t, d, "SELECT count(*) FROM auditlog WHERE namespace <> 'flood'"); n != 40 {
		t.Errorf("%d pulls of the others are written, want 40", n)
	}
}

// PostgreSQL refuses one entry, and two others can't be encoded as JSON. The recorder must
// drop these three and write the others of their batches.
func TestRecorderUnfit(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	m := metrics(t)
	r := NewRecorder(RecorderOptions{DB: d, Log: quiet, Metrics: m, Batch: 64})
	for n := range 200 {
		e := pull(n)
		switch n {
		case 13:
			e.Detail = map[string]any{"n": json.Number("1e999999")}
		case 150, 151:
			e.Detail = make(chan int)
		}
		r.Record(t.Context(), e)
	}
	must(t, r.Close(t.Context()))
	if n := count(t, d, "SELECT count(*) FROM auditlog"); n != 197 || r.Dropped() != 3 {
		t.Errorf("%d are written, %d dropped; want 197, 3", n, r.Dropped())
	}
	m.counts(t, 197, 0, 3, 0)
}

// gate simulates failures between a connection pool and its PostgreSQL server. While it is
// shut, connections can't be opened, and open ones are closed. It can also lose answers
// (swallow): the server executes a statement, and the client gets an error.
type gate struct {
	mu        sync.Mutex
	shut      bool
	swallow   string // the answer to a statement with this text is lost, and its connection closed
	conns     map[net.Conn]bool
	swallowed int
}

func (g *gate) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut {
		return nil, errors.New("the gate is shut")
	}
	c, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	g.conns[c] = true
	return &gated{Conn: c, gate: g}, nil
}

// set shuts the gate if `shut` is true, and opens it otherwise.
func (g *gate) set(shut bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut = shut; shut {
		for c := range g.conns {
			c.Close() //nolint:errcheck // that is what it is for
			delete(g.conns, c)
		}
	}
}

type gated struct {
	net.Conn
	gate *gate
	cut  bool
}

func (c *gated) Write(b []byte) (int, error) {
	c.gate.mu.Lock()
	if c.gate.swallow != "" && strings.Contains(string(b), c.gate.swallow) {
		c.cut = true // before the answer can come
	}
	c.gate.mu.Unlock()
	return c.Conn.Write(b)
}

func (c *gated) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b) // an answer shows that the statement was executed
	c.gate.mu.Lock()
	defer c.gate.mu.Unlock()
	if c.cut && err == nil {
		c.gate.swallowed++
		c.Conn.Close() //nolint:errcheck // that is what it is for
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}

// through opens a pool whose connections go through a gate. The pool sends each statement
// with its text, so that the gate recognizes statements by their text.
func through(t testing.TB, dsn string) (*db.DB, *gate) {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(dsn)
	must(t, err)
	g := &gate{conns: map[net.Conn]bool{}}
	cfg.ConnConfig.DialFunc = pgconn.DialFunc(g.dial)
	cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	cfg.MaxConns = 4
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	must(t, err)
	t.Cleanup(pool.Close)
	return &db.DB{Pool: db.PoolOver(pool)}, g
}

// The database can't be reached for a while. The recorder must keep pulls until its buffer
// is full and drop later ones without delay. When the database is back, it must write each
// kept pull once.
func TestDatabaseAwayAndBack(t *testing.T) {
	t.Parallel()
	dsn := dbtest.DSN(t)
	d := dbtest.Open(t, dsn)
	away, g := through(t, dsn)
	m := metrics(t)
	r := NewRecorder(RecorderOptions{DB: away, Log: quiet, Metrics: m, Buffer: 1000, Batch: 50, Every: time.Millisecond, Join: -1,
		BackoffMin: time.Millisecond, BackoffMax: 5 * time.Millisecond})
	stop := start(t, r.Run)
	record := func(n int) {
		for range n {
			r.Record(t.Context(), pull(1))
		}
	}
	record(100)
	eventually(t, "the first are written", func() bool { return r.Pending() == 0 })
	g.set(true)
	began := time.Now()
	record(1500)
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("1500 pulls took %v while the database was away", took)
	}
	if r.Pending() != 1000 || r.Dropped() != 500 {
		t.Errorf("%d are pending, %d dropped; want 1000, 500", r.Pending(), r.Dropped())
	}
	g.set(false)
	eventually(t, "the rest is written", func() bool { return r.Pending() == 0 })
	g.set(true)
	record(10)
	stop()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := r.Close(ctx); err == nil || !strings.HasPrefix(err.Error(), "10 pulls") {
		t.Errorf("closing while the database is away: %v", err)
	}
	if n := count(t, d, "SELECT count(*) FROM auditlog"); n != 1100 {
		t.Errorf("%d are written, want 1100", n)
	}
	m.counts(t, 1100, 500, 0, 10)
}

// The server commits a batch and the answer is lost, so the recorder writes the batch
// again. The table must have each entry once.
func TestUnansweredBatch(t *testing.T) {
	t.Parallel()
	dsn := dbtest.DSN(t)
	d := dbtest.Open(t, dsn)
	away, g := through(t, dsn)
	m := metrics(t)
	r := NewRecorder(RecorderOptions{DB: away, Log: quiet, Metrics: m, Batch: 20, Every: time.Millisecond,
		BackoffMin: time.Millisecond, BackoffMax: 5 * time.Millisecond})
	for n := range 100 {
		r.Record(t.Context(), pull(n))
	}
	g.mu.Lock()
	g.swallow = "INSERT INTO auditlog"
	g.mu.Unlock()
	stop := start(t, r.Run)
	eventually(t, "answers are swallowed", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.swallowed > 3
	})
	if r.Pending() != 100 {
		t.Errorf("%d are pending, want all 100: none was answered", r.Pending())
	}
	if n := count(t, d, "SELECT count(*) FROM auditlog"); n != 20 {
		t.Errorf("%d are there, want the 20 of the first batch: the test shows nothing", n)
	}
	g.mu.Lock()
	g.swallow = ""
	g.mu.Unlock()
	eventually(t, "all are written", func() bool { return r.Pending() == 0 })
	stop()
	must(t, r.Close(t.Context()))
	if n := count(t, d, "SELECT count(*) FROM auditlog"); n != 100 {
		t.Errorf("%d entries, want 100", n)
	}
	m.counts(t, 100, 0, 0, 0)
}

// A repository is deleted, and its id is removed from all its entries, before the recorder
// writes further pulls of this repository. The entries of these pulls must not have the id
// either.
func TestRecorderOfRepositoryGone(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	exec(t, d, "INSERT INTO top_level_namespaces (name) VALUES ('acme')")
	exec(t, d, "INSERT INTO repositories (top_level_namespace_id, path) SELECT id, 'acme/' || r FROM top_level_namespaces, unnest(ARRAY['app', 'web']) r")
	app := int64(count(t, d, "SELECT id FROM repositories WHERE path = 'acme/app'"))
	web := int64(count(t, d, "SELECT id FROM repositories WHERE path = 'acme/web'"))
	r := NewRecorder(RecorderOptions{DB: d, Log: quiet, Join: -1, Alive: func(ctx context.Context, tx pgx.Tx, ids []int64) ([]int64, error) {
		rows, err := tx.Query(ctx, "SELECT id FROM repositories WHERE id = ANY ($1) ORDER BY id FOR KEY SHARE", ids)
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(rows, pgx.RowTo[int64])
	}})
	for _, id := range []int64{web, app, app, web, 0} {
		r.Record(t.Context(), Entry{Kind: PullRepo, Repository: "acme/x", RepositoryID: id})
	}
	deleteRepository(t, d, "acme/app")
	drain(t, d)
	must(t, r.Close(t.Context()))
	if n := count(t, d, "SELECT count(*) FROM auditlog WHERE repository_id = $1", app); n != 0 {
		t.Errorf("%d entries have the id of a repository that is gone", n)
	}
	if n := len(all(t, d, Filter{RepositoryID: web})); n != 2 {
		t.Errorf("%d entries of the repository that is there, want 2", n)
	}
	if n := len(all(t, d, Filter{})); n != 5 {
		t.Errorf("%d entries, want 5", n)
	}
}

// BenchmarkRecord measures the time of one call of Record. After each 500 calls it also
// removes 500 entries from the buffer, as a written batch does.
func BenchmarkRecord(b *testing.B) {
	r := NewRecorder(RecorderOptions{Log: quiet, Join: -1})
	ctx := WithSource(b.Context(), Source{Actor: "ana", Address: "192.0.2.1"})
	e := pull(1)
	b.ReportAllocs()
	for n := 1; b.Loop(); n++ {
		if r.Record(ctx, e); n%500 == 0 {
			r.done(500, 0)
		}
	}
}
