package audit

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sync/errgroup"

	"github.com/purser-registry/purser/internal/db/dbtest"
)

// same returns the entry of a pull at the time `at`. All entries that it returns are of the
// same content and the same client, except for the fields that the function `change` sets.
func same(change func(*Entry), at time.Time) Entry {
	e := pull(1)
	if e.Time = at; change != nil {
		change(&e)
	}
	return e
}

// Pulls of the same content by one client within a second must be joined into one entry. A
// later pull, and pulls that differ in any field of joinKey, must get entries of their
// own.
func TestPullsAreJoined(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	m := metrics(t)
	r := NewRecorder(RecorderOptions{DB: d, Log: quiet, Metrics: m})
	begin := time.Date(2026, 3, 5, 7, 0, 0, 0, time.UTC)
	after := func(ms int) time.Time { return begin.Add(time.Duration(ms) * time.Millisecond) }
	for _, ms := range []int{300, 0, 999} { // the pulls come in no order
		e := same(nil, after(ms))
		e.RequestID = fmt.Sprint("request ", ms)
		r.Record(t.Context(), e)
	}
	r.Record(t.Context(), same(nil, after(1200))) // too late to be joined
	others := []func(*Entry){
		func(e *Entry) { e.Actor = "eva" }, func(e *Entry) { e.Address = "192.0.2.8" }, func(e *Entry) { e.UserAgent = "crane" },
		func(e *Entry) { e.Tag = "v2" }, func(e *Entry) { e.Digest = pull(2).Digest }, func(e *Entry) { e.RepositoryID = 9 },
		func(e *Entry) { e.CountedBy = CountedByNone }, func(e *Entry) { e.Kind = PullRepoFailed }, func(e *Entry) { e.RedisSeq = 5 },
	}
	for _, change := range others {
		r.Record(t.Context(), same(change, after(500)))
	}
	if n := r.Pending(); n != 2+len(others) {
		t.Errorf("%d entries wait, want %d", n, 2+len(others))
	}
	if oldest := r.Oldest(); !oldest.Equal(begin) {
		t.Errorf("the oldest pull is of %v, want %v", oldest, begin)
	}
	must(t, r.Close(t.Context()))
	list := all(t, d, Filter{To: after(1000)})
	found := slices.IndexFunc(list, func(e Entry) bool { return e.Pulls == 3 })
	if found < 0 {
		t.Fatalf("no entry of three pulls: %+v", list)
	}
	if e := list[found]; !e.Time.Equal(after(999)) || !e.FirstTime.Equal(begin) || e.RequestID != "request 999" {
		t.Errorf("three pulls are %+v", e)
	}
	m.counts(t, 4+len(others), 0, 0, 0)
	if n := testutil.ToFloat64(m.entries); n != float64(2+len(others)) {
		t.Errorf("%v entries are counted", n)
	}
}

// The recorder gets 500 pulls by digest and HEADs within a second. It must join them into
// two entries, which keep the time and port of each request.
func TestJoinedTimes(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	r := NewRecorder(RecorderOptions{DB: d, Log: quiet})
	begin := time.Date(2026, 3, 5, 7, 0, 0, 123_456_000, time.UTC)
	rnd := rand.New(rand.NewPCG(1, 2))
	want := map[bool][]Request{}
	for range 500 {
		at := begin.Add(time.Duration(rnd.IntN(1_000_000)) * time.Microsecond)
		head := rnd.IntN(2) == 0
		port := rnd.IntN(65536)
		want[head] = append(want[head], Request{at, port})
		if head {
			r.RecordHead(t.Context(), same(func(e *Entry) { e.Port = port }, at))
		} else {
			r.Record(t.Context(), same(func(e *Entry) { e.Tag, e.Port = "", port }, at))
		}
	}
	must(t, r.Close(t.Context()))
	var pulls []Pull
	eventually(t, "older transactions of the server are over", func() (ok bool) {
		var err error
		pulls, err = New(d).Pulls(t.Context(), Position{}, 100)
		must(t, err)
		return len(pulls) > 0
	})
	if len(pulls) != 2 {
		t.Fatalf("%d rows, want one of HEADs and one of pulls", len(pulls))
	}
	for _, p := range pulls {
		got, err := Requests(Request{p.First, p.Port}, p.Later)
		must(t, err)
		slices.SortStableFunc(want[p.Head], func(a, b Request) int { return a.Time.Compare(b.Time) })
		if !slices.EqualFunc(got, want[p.Head], func(a, b Request) bool { return a.Time.Equal(b.Time) && a.Port == b.Port }) {
			t.Errorf("head %v: %d times, want %d, or they differ", p.Head, len(got), len(want[p.Head]))
		}
		if !p.Head && p.N != len(got) {
			t.Errorf("the entry is of %d pulls and has %d times", p.N, len(got))
		}
	}
	for _, broken := range [][]byte{{0x80}, {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}, make([]byte, 2*maxRequests+4), {1}, {1, 0xff, 0xff, 0x7f}} {
		if _, err := Requests(Request{Time: begin}, broken); err == nil {
			t.Errorf("% x has times", broken[:1])
		}
	}
}

// Two entries stand for 37 pulls. CountPulls and Aggregate must count the pulls, not the
// entries.
func TestWatchedPullsAreAddedUp(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	at := time.Date(2026, 3, 5, 7, 0, 0, 0, time.UTC)
	var namespace int64
	must(t, d.Pool.QueryRow(t.Context(), "INSERT INTO top_level_namespaces (name) VALUES ('namespaceb') RETURNING id").Scan(&namespace))
	e := same(nil, at)
	must(t, d.Pool.QueryRow(t.Context(), "INSERT INTO repositories (top_level_namespace_id, path) VALUES ($1, $2) RETURNING id", namespace, e.Repository).
		Scan(&e.RepositoryID))
	other := e
	e.Pulls, e.FirstTime = 36, at.Add(-time.Second)
	must(t, Append(t.Context(), d.Pool, e, other))
	var counts []PullCount
	eventually(t, "older transactions of the server are over", func() bool {
		must(t, d.Tx(t.Context(), func(tx pgx.Tx) (err error) {
			counts, _, _, err = CountPulls(t.Context(), tx, Position{}, 10, []Watch{{namespace, at.Add(-time.Hour)}})
			return err
		}))
		return len(counts) > 0
	})
	if len(counts) != 1 || counts[0].Pulls != 37 || !counts[0].First.Equal(e.FirstTime) || !counts[0].Last.Equal(at) {
		t.Errorf("the pulls are %+v", counts)
	}
	days, all, err := New(d).Aggregate(t.Context(), Filter{Kinds: []Kind{PullRepo}})
	must(t, err)
	if len(days) != 1 || days[0].Count != 37 || !all {
		t.Errorf("the day has %+v", days)
	}
}

// Eight goroutines record more pulls than the buffer has room for, and wait while it is
// full. The recorder must write all pulls and drop none.
func TestNothingIsDroppedAtFullLoad(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	r := NewRecorder(RecorderOptions{DB: d, Log: quiet, Buffer: 50, Batch: 10, Every: 5 * time.Millisecond, Patience: time.Minute})
	stop := start(t, r.Run)
	var group errgroup.Group
	for g := range 8 {
		group.Go(func() error {
			for n := range 200 {
				e := pull(n)
				e.Tag = fmt.Sprintf("g%d-n%d", g, n/2)
				for !r.Offer(t.Context(), e) {
					if !r.Wait(t.Context(), time.Now().Add(time.Minute)) {
						return fmt.Errorf("no room for pull %d", n)
					}
				}
			}
			return nil
		})
	}
	must(t, group.Wait())
	stop()
	must(t, r.Close(t.Context()))
	if n := count(t, d, "SELECT sum(pulls) FROM auditlog"); n != 1600 || r.Dropped() != 0 {
		t.Errorf("%d pulls are written, %d dropped; want 1600, 0", n, r.Dropped())
	}
}

// The recorder's buffer is full and the database can't be reached. No pull may wait. The
// recorder must accept a pull that it can join with an entry in the buffer, even if the
// pull comes an hour later, and must refuse all other pulls.
func TestFullWhileAway(t *testing.T) {
	t.Parallel()
	dsn := dbtest.DSN(t)
	d := dbtest.Open(t, dsn)
	away, g := through(t, dsn)
	r := NewRecorder(RecorderOptions{DB: away, Log: quiet, Buffer: 20, Batch: 5, Every: time.Millisecond,
		BackoffMin: time.Millisecond, BackoffMax: 5 * time.Millisecond})
	g.set(true)
	at := time.Now()
	for n := range 20 {
		r.Record(t.Context(), same(func(e *Entry) { e.Tag = fmt.Sprint("v", n) }, at))
	}
	stop := start(t, r.Run)
	eventually(t, "it is found that the database is away", func() bool { return !r.Wait(t.Context(), time.Now().Add(time.Minute)) })
	late := func(tag string) bool {
		return r.Offer(t.Context(), same(func(e *Entry) { e.Tag = tag }, at.Add(time.Hour)))
	}
	if !late("v19") || late("new") || late("v0") { // the entries of the first batch take no more pulls
		t.Error("an hour later a pull is joined, or not, as it shouldn't be")
	}
	g.set(false)
	eventually(t, "all is written", func() bool { return r.Pending() == 0 })
	stop()
	if n := count(t, d, "SELECT sum(pulls) FROM auditlog"); n != 21 {
		t.Errorf("%d pulls are written, want 21", n)
	}
	if n := count(t, d, "SELECT extract(epoch FROM time - first_time) FROM auditlog WHERE pulls = 2"); n != 3600 {
		t.Errorf("the joined pulls are %d s apart, want 3600", n)
	}
}

// Four goroutines record pulls while PostgreSQL's answers to some batches are lost, so
// that the recorder writes these batches again. The table must count each pull once.
func TestJoinedOnce(t *testing.T) {
	t.Parallel()
	dsn := dbtest.DSN(t)
	d := dbtest.Open(t, dsn)
	away, g := through(t, dsn)
	r := NewRecorder(RecorderOptions{DB: away, Log: quiet, Batch: 3, Every: time.Millisecond,
		BackoffMin: time.Millisecond, BackoffMax: 5 * time.Millisecond})
	stop := start(t, r.Run)
	var group errgroup.Group
	var mu sync.Mutex
	want := map[string]int{}
	for i := range 4 {
		group.Go(func() error {
			rnd := rand.New(rand.NewPCG(uint64(i), 3))
			for n := range 2000 {
				tag := fmt.Sprint("v", rnd.IntN(8))
				if !r.Record(t.Context(), same(func(e *Entry) { e.Tag = tag }, time.Now())) {
					return fmt.Errorf("pull %d isn't taken", n)
				}
				mu.Lock()
				want[tag]++
				mu.Unlock()
				switch rnd.IntN(200) {
				case 0:
					g.mu.Lock()
					g.swallow = "INSERT INTO auditlog"
					g.mu.Unlock()
				case 1, 2:
					g.mu.Lock()
					g.swallow = ""
					g.mu.Unlock()
				}
				time.Sleep(time.Duration(rnd.IntN(200)) * time.Microsecond)
			}
			return nil
		})
	}
	must(t, group.Wait())
	g.mu.Lock()
	g.swallow = ""
	swallowed := g.swallowed
	g.mu.Unlock()
	eventually(t, "all is written", func() bool { return r.Pending() == 0 })
	stop()
	must(t, r.Close(t.Context()))
	for tag, n := range want {
		if got := count(t, d, "SELECT sum(pulls) FROM auditlog WHERE tag = $1", tag); got != n {
			t.Errorf("%s: %d pulls, want %d", tag, got, n)
		}
	}
	entries := count(t, d, "SELECT count(*) FROM auditlog")
	if swallowed == 0 || entries > 4000 {
		t.Errorf("%d answers were lost, %d entries: the test shows nothing", swallowed, entries)
	}
	t.Logf("8000 pulls in %d entries, %d answers lost", entries, swallowed)
}

// Two clients' User-Agent texts differ only after the first 1024 bytes, which are all that
// the table stores. The recorder must not join their pulls: otherwise one client's pulls
// would count as the other's.
func TestJoinKeyTellsApart(t *testing.T) {
	t.Parallel()
	a := same(func(e *Entry) { e.Address, e.UserAgent = "x", strings.Repeat("y", 2000) }, time.Now())
	b := a
	b.UserAgent = a.UserAgent[:1999] + "z" // differs behind what the log keeps
	if again := a; a.joinKey() == b.joinKey() || a.joinKey() != again.joinKey() {
		t.Error("keys don't tell clients apart")
	}
}
