package clock

import (
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/testscale"
	"github.com/purser-registry/purser/internal/worker"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

const day = 24 * time.Hour

// pretended is a machine whose clocks a test sets. The database's clock can't be set, so a test in
// which it is ahead makes both clocks of the machine go behind.
type pretended struct {
	up, wall     atomic.Int64 // what is added to the true clocks
	synchronized atomic.Bool
}

// set sets how far the machine's clocks differ from the true ones.
func (p *pretended) set(up, wall time.Duration) {
	p.up.Store(int64(up))
	p.wall.Store(int64(wall))
}

func (p *pretended) machine(boot string) machine {
	began := time.Now()
	return machine{
		boot:         boot,
		up:           func() time.Duration { return 1000*day + time.Since(began) + time.Duration(p.up.Load()) },
		now:          func() time.Time { return time.Now().Round(0).Add(time.Duration(p.wall.Load())) },
		synchronized: p.synchronized.Load,
	}
}

// open makes a guard of a process on a pretended machine.
func open(t *testing.T, d *db.DB, p *pretended, boot string) *Guard {
	t.Helper()
	g, err := New(Options{DB: d})
	if err != nil {
		t.Fatal(err)
	}
	g.machine = p.machine(boot)
	return g
}

// want checks what the guard finds: "" if nothing.
func (g *Guard) want(t *testing.T, text string) {
	t.Helper()
	g.mu.Lock()
	g.last.up = -1000 * day // Check looks
	g.mu.Unlock()
	err := g.Check(t.Context())
	if text == "" && err != nil || text != "" && (err == nil || !strings.Contains(err.Error(), text)) {
		t.Errorf("the guard says %v, want %q", err, text)
	}
	if err != nil && !errors.Is(err, worker.ErrRest) {
		t.Errorf("%v isn't a rest", err)
	}
}

func exec(t *testing.T, d *db.DB, sql string, args ...any) {
	t.Helper()
	if _, err := d.Pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

func confirm(t *testing.T, d *db.DB, want string) {
	t.Helper()
	if doubt, err := Confirm(t.Context(), d); err != nil || !strings.Contains(doubt, want) || want == "" && doubt != "" {
		t.Errorf("confirmed %q, want %q (%v)", doubt, want, err)
	}
}

// TestClocksDiffer: while database and process disagree, nothing is deleted; when they agree again,
// it is, without a confirmation.
func TestClocksDiffer(t *testing.T) {
	t.Parallel()
	d, p := dbtest.New(t), &pretended{}
	g := open(t, d, p, "a")
	confirm(t, d, "") // before anybody looked
	g.want(t, "")
	for _, tt := range []struct {
		wall time.Duration
		want string
	}{
		{-60 * day, "is 60d ahead of the clock of this process"},
		{0, ""},
		{60 * day, "is 60d behind the clock of this process"},
		{-6 * time.Minute, "is 6m0s ahead of"},
		{4 * time.Minute, ""},
		{26 * time.Hour, "1d 2h behind"},
	} {
		p.set(0, tt.wall)
		g.want(t, tt.want)
	}
	confirm(t, d, "") // a difference isn't in doubt
	g.want(t, "1d 2h behind")
}

// TestClockOfStatistics: the pull statistics are in a database of another server. While its clock and
// that of this process disagree, nothing is deleted, and what was found stands while it is away.
func TestClockOfStatistics(t *testing.T) {
	t.Parallel()
	d, dsn := dbtest.New(t), dbtest.DSN(t)
	setting := dbtest.Open(t, dsn)
	exec(t, setting, "CREATE TABLE public.ahead (shift interval)")
	exec(t, setting, "INSERT INTO ahead VALUES ('0')")
	// The database's clock can't be set. A function of the same name that comes first stands for it.
	exec(t, setting, `CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE
		AS 'SELECT pg_catalog.clock_timestamp() + shift FROM public.ahead'`)
	statistics := dbtest.Open(t, dsn+"&search_path=public,pg_catalog")
	g, err := New(Options{DB: d, Statistics: statistics})
	if err != nil {
		t.Fatal(err)
	}
	g.machine = (&pretended{}).machine("a")
	for _, tt := range []struct{ by, want string }{
		{"0", ""},
		{"60 days", "the clock of the statistics' database is 60d ahead of the clock of this process"},
		{"4 minutes", ""},
		{"-26 hours", "the clock of the statistics' database is 1d 2h behind"},
	} {
		exec(t, setting, "UPDATE ahead SET shift = $1::text::interval", tt.by)
		if _, err := g.run(t.Context()); err != nil {
			t.Fatal(err)
		}
		g.want(t, tt.want)
		if err := g.CheckTime(t.Context(), time.Now()); (tt.want != "") != errors.Is(err, worker.ErrRest) {
			t.Errorf("%s ahead: %v", tt.by, err)
		}
	}
	statistics.Close()
	if _, err := g.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	g.want(t, "the clock of the statistics' database is 1d 2h behind")
}

// TestDatabaseJumps: database and process are on one machine, whose clock is set while they run.
func TestDatabaseJumps(t *testing.T) {
	t.Parallel()
	for name, jump := range map[string]time.Duration{"is 60d ahead of": 60 * day, "is 60d behind": -60 * day, "is 6m0s ahead of": 6 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, p := dbtest.New(t), &pretended{}
			g, other := open(t, d, p, "a"), open(t, d, &pretended{}, "b")
			g.want(t, "")
			other.want(t, "")
			p.set(-jump, 0)
			if err := g.CheckTime(t.Context(), time.Now()); err == nil {
				t.Error("a time of the database passed that can't be")
			}
			trusted := trustedAt(t, d)
			g.want(t, name[3:])
			other.want(t, "purser clock confirm") // on every replica
			other.run(t.Context())                //nolint:errcheck // the next line tells
			if now := trustedAt(t, d); !now.Equal(trusted) {
				t.Errorf("in doubt, the clock was trusted at %v and then at %v", trusted, now)
			}
			open(t, d, p, "a").want(t, "purser clock confirm")
			p.set(0, 0) // somebody sets it back: that is a jump too
			g.want(t, "purser clock confirm")
			confirm(t, d, "should have shown")
			g.want(t, "")
			other.want(t, "")
			if now := trustedAt(t, d); !now.After(trusted) {
				t.Errorf("confirmed, the clock is trusted at %v", now)
			}
		})
	}
}

func trustedAt(t *testing.T, d *db.DB) (at time.Time) {
	t.Helper()
	if err := d.Pool.QueryRow(t.Context(), "SELECT trusted_at FROM clock").Scan(&at); err != nil {
		t.Fatal(err)
	}
	return at
}

// TestSmallSteps: a clock that is set in small steps is found by their sum.
func TestSmallSteps(t *testing.T) {
	t.Parallel()
	d, p := dbtest.New(t), &pretended{}
	g := open(t, d, p, "a")
	for i := range 3 {
		p.set(-time.Duration(i)*2*time.Minute, 0)
		g.want(t, "")
	}
	p.set(-6*time.Minute, 0)
	g.want(t, "6m0s ahead of")
}

// TestCorrectedClock: a time server corrects the clock of a machine that has just started.
func TestCorrectedClock(t *testing.T) {
	t.Parallel()
	d, p := dbtest.New(t), &pretended{}
	p.synchronized.Store(true)
	g := open(t, d, p, "a")
	g.want(t, "")
	p.set(-10*time.Hour, 0)
	g.want(t, "")
	p.set(-20*day, 0) // too far for a correction
	g.want(t, "ahead of what it should have shown")
}

// TestStart compares with what processes saw before.
func TestStart(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, boot   string
		seen         time.Duration // when somebody looked last, before now
		up           time.Duration // how long the machine has run since, if it is the same
		synchronized bool
		want         string
	}{
		{"stopped for an hour", "b", time.Hour, 0, false, ""},
		{"stopped over a weekend", "b", 60 * time.Hour, 0, false, ""},
		{"stopped for long", "b", 60 * day, 0, true, "60d; that is longer than clock.longest_absence"},
		{"restarted", "a", time.Hour, time.Hour, false, ""},
		{"restarted after a month, on a machine that ran", "a", 30 * day, 30 * day, false, ""},
		{"clock set while stopped", "a", 10 * time.Hour, time.Minute, false, "9h59m0s ahead of what it should have shown"},
		{"clock corrected while stopped", "a", 10 * time.Hour, time.Minute, true, ""},
		{"clock set back while stopped", "a", -10 * time.Hour, time.Minute, false, "10h1m0s behind what it should have shown"},
		{"clock behind", "b", -time.Hour, 0, false, "before the time at which the registry last ran"},
		{"unknown boots are no equal boots", "", 60 * day, 60 * day, false, "60d"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d, p := dbtest.New(t), &pretended{}
			p.synchronized.Store(tt.synchronized)
			boot := "a"
			if tt.boot == "" {
				boot = ""
			}
			g := open(t, d, p, boot)
			exec(t, d, "INSERT INTO clock (seen_at, boot, up) VALUES (now() - make_interval(secs => $1), $2, $3)",
				tt.seen.Seconds(), tt.boot, (g.machine.up() - tt.up).Microseconds())
			g.want(t, tt.want)
			if tt.want == "" {
				return
			}
			open(t, d, p, boot).want(t, tt.want) // it stays for those who start later
			confirm(t, d, tt.want)
			g.want(t, "")
			open(t, d, p, boot).want(t, "")
		})
	}
}

// ends returns how long each lease and each date of the trash is still to last, in whole hours.
func ends(t *testing.T, d *db.DB) (hours string) {
	t.Helper()
	err := d.Pool.QueryRow(t.Context(), `
		SELECT string_agg(name || ' ' || round(extract(epoch FROM at - now()) / 3600), ', ' ORDER BY name)
		FROM (
			SELECT name, expires_at AS at FROM holdreporters
			UNION ALL SELECT 'held by ' || r.name, h.ends_at + r.postponed FROM holds h JOIN holdreporters r ON r.id = h.reporter_id
			UNION ALL SELECT deleted_path, purge_after FROM repositories WHERE deleted_at IS NOT NULL
			UNION ALL SELECT deleted_name, purge_after FROM top_level_namespaces WHERE deleted_at IS NOT NULL) e`).Scan(&hours)
	if err != nil {
		t.Fatal(err)
	}
	return hours
}

// TestAbsence: while no process runs, and while the clock is in doubt, leases and dates of the trash
// stand still. The clock is behind if it was set back and then right again.
func TestAbsence(t *testing.T) {
	t.Parallel()
	prepare := func(t *testing.T, away time.Duration) (*db.DB, *pretended) {
		d, p := dbtest.New(t), &pretended{}
		exec(t, d, `
			INSERT INTO holdreporters (name, lease, expires_at)
			SELECT n, '1 day', now() - $1::interval + h * interval '1 hour' FROM (VALUES ('over', -1), ('runs', 20)) v (n, h)`, away)
		exec(t, d, `
			INSERT INTO holds (digest, reporter_id, ends_at)
			SELECT decode(name, 'escape'), id, now() - $1::interval + CASE name WHEN 'over' THEN -2 ELSE 5 END * interval '1 hour' FROM holdreporters`, away)
		exec(t, d, `
			INSERT INTO top_level_namespaces (name, deleted_name, deleted_at, purge_after)
			SELECT '#' || n, n, now() - $1::interval - interval '2 days', now() - $1::interval + h * interval '1 hour'
			FROM (VALUES ('purged', -1), ('trashed', 10)) v (n, h)`, away)
		exec(t, d, "INSERT INTO clock (seen_at, boot, up, trusted_at) VALUES (now() - $1::interval, 'b', 0, now() - $1::interval)", away)
		return d, p
	}
	t.Run("stopped", func(t *testing.T) {
		t.Parallel()
		d, p := prepare(t, 36*time.Hour)
		if have := ends(t, d); have != "held by over -38, held by runs -31, over -37, purged -37, runs -16, trashed -26" {
			t.Fatalf("before anybody looks: %s", have)
		}
		var wg sync.WaitGroup
		for range 4 { // only one of them postpones
			wg.Go(func() { open(t, d, p, "a").want(t, "") })
		}
		wg.Wait()
		want := "held by over -38, held by runs 5, over -37, purged -37, runs 20, trashed 10"
		if have := ends(t, d); have != want {
			t.Errorf("after 36 hours without the registry: %s, want %s", have, want)
		}
		g := open(t, d, p, "a")
		g.want(t, "")
		g.want(t, "")
		if have := ends(t, d); have != want {
			t.Errorf("another start: %s, want %s", have, want)
		}
	})
	t.Run("the database was away", func(t *testing.T) {
		t.Parallel()
		d, p := prepare(t, 0)
		g := open(t, d, p, "a")
		g.want(t, "")
		exec(t, d, "UPDATE clock SET seen_at = seen_at - interval '30 hours', trusted_at = trusted_at - interval '30 hours'")
		exec(t, d, "UPDATE holdreporters SET expires_at = expires_at - interval '30 hours'")
		g.want(t, "") // a look that isn't one of Run, and not the first
		if have := ends(t, d); have != "held by over -2, held by runs 35, over -31, purged 29, runs 20, trashed 40" {
			t.Errorf("%s", have)
		}
	})
	t.Run("in doubt", func(t *testing.T) {
		t.Parallel()
		d, p := prepare(t, 60*day)
		want := ends(t, d)
		g := open(t, d, p, "a")
		g.want(t, "longer than clock.longest_absence")
		if have := ends(t, d); have != want {
			t.Errorf("before it was confirmed: %s, want %s", have, want)
		}
		confirm(t, d, "longest_absence")
		g.want(t, "")
		if have := ends(t, d); have != "held by over -1442, held by runs 5, over -1441, purged -1441, runs 20, trashed 10" {
			t.Errorf("confirmed: %s", have)
		}
	})
}

// TestEntriesOfTheFuture: the audit log has entries of the future, so the clock was wrong or is.
func TestEntriesOfTheFuture(t *testing.T) {
	t.Parallel()
	d, p := dbtest.New(t), &pretended{}
	g := open(t, d, p, "a")
	exec(t, d, "INSERT INTO auditlog (time, kind) VALUES (now() - interval '90 days', 'push_repo'), (now() + interval '4 minutes', 'push_repo')")
	g.want(t, "")
	exec(t, d, "INSERT INTO auditlog (time, kind) VALUES (now() + interval '60 days', 'push_repo')")
	g.want(t, "the newest entry of the audit log is of ")
	confirm(t, d, "newest entry")
	g.want(t, "")
	exec(t, d, "INSERT INTO auditlog (time, kind) VALUES (now() + interval '61 days', 'push_repo')")
	g.want(t, "the newest entry of the audit log is of ")
}

// TestGauges: the gauges show a rest, and don't keep their last values when the database is gone.
func TestGauges(t *testing.T) {
	t.Parallel()
	d, p, reg := dbtest.New(t), &pretended{}, prometheus.NewRegistry()
	g, err := New(Options{DB: d, Metrics: reg})
	if err != nil {
		t.Fatal(err)
	}
	g.machine = p.machine("a")
	look := func() {
		g.run(t.Context()) //nolint:errcheck // the gauges tell
	}
	check := func(resting, least, most float64) {
		t.Helper()
		look()
		if r := testutil.ToFloat64(g.gauges.resting); r != resting && !(math.IsNaN(r) && math.IsNaN(resting)) {
			t.Errorf("resting is %v, want %v", r, resting)
		}
		if o := testutil.ToFloat64(g.gauges.offset); !math.IsNaN(resting) && (o < least || o > most) || math.IsNaN(resting) && !math.IsNaN(o) {
			t.Errorf("the offset is %v, want %v to %v", o, least, most)
		}
	}
	check(0, -5, 5)
	p.set(0, time.Hour)
	check(1, -3605, -3595)
	p.set(0, 0)
	check(0, -5, 5)
	d.Close()
	check(math.NaN(), 0, 0)
	g.last.up -= time.Hour
	if err := g.Check(t.Context()); err == nil || errors.Is(err, worker.ErrRest) {
		t.Errorf("without a database the guard says %v", err)
	}
}

// TestLookWaitsForAConnection: a look that waits for a connection of the pool keeps no transaction
// waiting that has one, also if the last look was long ago. Otherwise transactions that have all
// connections and ask for the time would wait for the look, and the look for them.
func TestLookWaitsForAConnection(t *testing.T) {
	t.Parallel()
	d, err := db.Open(t.Context(), db.Options{DSN: dbtest.DSN(t), MaxConns: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	p := new(pretended)
	g := open(t, d, p, "a")
	g.want(t, "")
	for range 2 {
		tx, err := d.Pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(t.Context()) //nolint:errcheck // it has done nothing
	}
	looked := make(chan struct{})
	go func() {
		defer close(looked)
		g.run(t.Context()) //nolint:errcheck // it gets no connection
	}()
	for g.looks.TryLock() { // it hasn't begun
		g.looks.Unlock()
	}
	if err := g.CheckTime(t.Context(), time.Now()); err != nil {
		t.Error(err)
	}
	p.set(3*timeAge, 0)
	if err := g.CheckTime(t.Context(), time.Now()); !errors.Is(err, worker.ErrRest) {
		t.Errorf("when nobody had looked for a minute, the time of a transaction was judged: %v", err)
	}
	select {
	case <-looked:
		t.Error("a transaction has waited for a look that waits for a connection")
	default:
	}
}

// TestStorm: the clock of a machine is set again and again, somebody confirms now and then, and the
// guards of three processes look and are asked at the same time. After a jump nobody may delete on
// that machine before a confirmation, whoever looked when; without a jump everybody may.
func TestStorm(t *testing.T) {
	t.Parallel()
	d, p, seed := dbtest.New(t), &pretended{}, uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // not a secret
	guards := []*Guard{open(t, d, p, "a"), open(t, d, p, "a"), open(t, d, p, "a")}
	for _, g := range guards {
		g.want(t, "")
	}
	ask := func(check func(g *Guard, err error)) {
		var wg sync.WaitGroup
		for range 4 {
			for _, g := range guards {
				wg.Go(func() { check(g, g.CheckTime(t.Context(), time.Now())) })
				wg.Go(func() { g.run(t.Context()) }) //nolint:errcheck // the checks tell
			}
		}
		wg.Wait()
	}
	shift := time.Duration(0)
	for range testscale.Pick(20, 200) {
		ask(func(_ *Guard, err error) {
			if err != nil {
				t.Errorf("seed %d: without a jump: %v", seed, err)
			}
		})
		for range 1 + r.IntN(2) {
			shift += time.Duration(r.IntN(2)*2-1) * (10*time.Minute + time.Duration(r.Int64N(int64(90*day))))
			p.set(shift, 0)
			ask(func(_ *Guard, err error) {
				if !errors.Is(err, worker.ErrRest) {
					t.Errorf("seed %d: after a jump: %v", seed, err)
				}
			})
		}
		confirm(t, d, "should have shown")
		for _, g := range guards {
			g.want(t, "")
		}
	}
}
