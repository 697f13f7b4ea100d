//go:build all

package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// These environment variables set how long the soak's traffic lasts, and the seed of its
// random numbers. With the same seed, the workers push the same content and make the same
// choices, but not at the same times.
const (
	soakTimeVariable = "PURSER_TEST_SOAK"
	soakSeedVariable = "PURSER_TEST_SOAK_SEED"

	// soakTime is the default duration of the traffic, which is divided into rounds of at most
	// longestRound. Each round has a registry of its own.
	soakTime     = 24 * time.Second
	longestRound = time.Minute
)

// longestRequest is the longest time that the soak's registries allow for a request. It is
// also the age at which they end an unfinished upload.
const longestRequest = 8 * time.Second

// soakVariant is a configuration of the registry in which the soak runs.
type soakVariant struct {
	name    string
	store   func(t testing.TB, seed uint64) soakStore
	promise bool // the review delay of blobs isn't zero, so clients get promises of existence
	workers int
	env     []string
}

var soakVariants = []soakVariant{
	{name: "s3", store: soakS3, workers: 6},
	{name: "directory", store: soakDirectory, workers: 6, env: []string{"PURSER_GC_WORKERS=2"}},
	{name: "promises", store: soakS3, workers: 14, promise: true},
}

// Many clients send every kind of request at once to a registry of two replicas whose garbage
// collection has no delays. The test kills the replicas, makes their store fail, and compares
// the registry with a model:
//
//   - Tagged manifests, the manifests that they list, and the referrers of all these can
//     always be pulled completely.
//   - A client that was told that a blob exists can put a manifest with the blob
//     while the promise of existence lasts.
//   - Everything that nothing refers to is deleted: rows, objects, multipart uploads.
//   - No request fails because of garbage collection, or waits for it longer
//     than one of its transactions may take.
//
// The test doesn't run in parallel with others, since it uses the whole machine and would
// disturb tests that measure time.
func TestSoak(t *testing.T) {
	if testing.Short() || target() != "" {
		t.Skip("the soak needs registries of its own, and doesn't run with -short")
	}
	total, seed := soakSettings(t)
	round := min(total/time.Duration(len(soakVariants)), longestRound)
	for spent := time.Duration(0); spent < total && !t.Failed(); spent += round {
		v := soakVariants[int(spent/round)%len(soakVariants)]
		t.Run(fmt.Sprintf("%s/%d", v.name, seed), func(t *testing.T) { newSoak(t, v, seed, round).run() })
		seed++
	}
}

func soakSettings(t *testing.T) (total time.Duration, seed uint64) {
	t.Helper()
	total, seed = soakTime, rand.Uint64N(1_000_000)
	var err error
	if text := os.Getenv(soakTimeVariable); text != "" {
		if total, err = time.ParseDuration(text); err != nil || total < time.Second {
			t.Fatalf("%s=%s: want a duration of at least a second", soakTimeVariable, text)
		}
	}
	if text := os.Getenv(soakSeedVariable); text != "" {
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("%s: %v", soakSeedVariable, err)
		}
	}
	return total, seed
}

// soak is one round.
type soak struct {
	t        *testing.T
	variant  soakVariant
	seed     uint64
	round    time.Duration // duration of the traffic
	promise  time.Duration // duration of a promise of existence
	pace     time.Duration // shortest pause between two faults of a replica or the store
	traffic  context.Context
	stop     context.CancelFunc
	replicas []*replica
	store    soakStore
	db       *pgxpool.Pool
	pg       *postgres
	universe *universe
	owners   []*owner
	arena    *arena
	trace    trace
	stats    stats

	mu         sync.Mutex
	violations int
}

// newSoak starts two replicas on a new database and a new store.
func newSoak(t *testing.T, v soakVariant, seed uint64, round time.Duration) *soak {
	s := &soak{t: t, variant: v, seed: seed, round: round, pace: min(max(round/4, time.Second), 5*time.Second),
		universe: newUniverse(seed), arena: newArena()}
	env := []string{"PURSER_LOG_LEVEL=warn", "PURSER_LOG_ACCESS=false", "PURSER_GC_REVIEW_AFTER=0s",
		"PURSER_HTTP_BODY_IDLE_TIMEOUT=5s", "PURSER_HTTP_MAX_REQUEST_TIME=" + longestRequest.String(),
		"PURSER_UPLOADS_MAX_AGE=" + longestRequest.String()}
	if v.promise {
		s.promise = min(max(round/3, 4*time.Second), 20*time.Second)
		env = append(env, "PURSER_GC_REVIEW_AFTER_EVENTS=blob_upload="+s.promise.String())
	}
	s.pg = startPostgres(t)
	s.openDatabase()
	s.store = v.store(t, seed)
	env = slices.Concat(env, v.env, s.store.env, []string{"PURSER_DATABASE_MAIN=" + s.pg.DSN()})
	for _, name := range []string{"A", "B"} {
		r := &replica{name: name, reg: &registry{t: t, opt: options{dataDir: newDir(t), env: env}}}
		r.troubles.begin()
		t.Cleanup(r.reg.cleanup)
		r.reg.start()
		r.up()
		s.replicas = append(s.replicas, r)
	}
	for i := range v.workers {
		w := s.worker(fmt.Sprintf("owner%d", i), 100+i)
		s.owners = append(s.owners, &owner{worker: w, repos: []*ownRepo{
			newOwnRepo(fmt.Sprintf("soak%d/app", i)), newOwnRepo(fmt.Sprintf("soak%d/base%d", i%3, i))}})
	}
	return s
}

// openDatabase opens a pool of connections to the registry's database. It configures
// PostgreSQL not to log the statements that fail, since the soak makes many fail on purpose,
// and not to wait for its disk, which allows more traffic. That is safe because PostgreSQL
// doesn't crash in this test.
func (s *soak) openDatabase() {
	s.t.Helper()
	var err error
	if s.db, err = pgxpool.New(s.t.Context(), s.pg.DSN()); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(s.db.Close)
	s.exec("ALTER SYSTEM SET log_min_error_statement = panic")
	s.exec("ALTER SYSTEM SET fsync = off")
	s.exec("SELECT pg_reload_conf()")
}

func (s *soak) worker(name string, stream int) *worker {
	return &worker{s, name, rand.New(rand.NewPCG(s.seed, uint64(stream)))}
}

// run sends requests for the time s.round, and then checks the registry.
func (s *soak) run() {
	s.t.Logf("%v of traffic; again with %s=%d -run 'TestSoak/%s'", s.round, soakSeedVariable, s.seed, s.variant.name)
	s.traffic, s.stop = context.WithTimeout(s.t.Context(), s.round)
	defer s.stop()
	var wg sync.WaitGroup
	for _, o := range s.owners {
		wg.Go(o.work)
	}
	for i := range 3 {
		wg.Go(s.worker(fmt.Sprintf("verifier%d", i), i).verify)
	}
	for i := range 2 {
		wg.Go(s.worker(fmt.Sprintf("brawler%d", i), 10+i).brawl)
	}
	wg.Go(func() { s.kill(rand.New(rand.NewPCG(s.seed, 20))) })
	if s.store.proxy != nil {
		wg.Go(func() { s.ail(rand.New(rand.NewPCG(s.seed, 21))) })
	}
	wg.Wait()
	s.finish()
}

// violate fails the test because of a result that must not occur, and ends the traffic. It
// logs the last requests that mention one of `words`, and the database rows about them.
func (s *soak) violate(words []string, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.violations++
	if s.violations > 3 {
		return
	}
	words = slices.DeleteFunc(slices.Clone(words), func(word string) bool { return word == "" })
	s.t.Errorf("%s: %s\nwith %s=%d; requests that mention %q:\n%s%s", time.Now().Format("15:04:05.000"),
		fmt.Sprintf(format, args...), soakSeedVariable, s.seed, words, s.trace.about(words, 80), s.rowsAbout(words))
	s.stop()
}

// stats counts the soak's requests by their results.
type stats struct {
	mu      sync.Mutex
	counts  map[string]int
	longest map[string]time.Duration // key: whether the request needs the store
}

func (c *stats) count(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts == nil {
		c.counts = map[string]int{}
	}
	c.counts[what]++
}

func (c *stats) took(r call, d time.Duration) {
	kind := "longest wait without the store"
	if r.stored {
		kind = "longest wait for the store"
	}
	c.count("requests")
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.longest == nil {
		c.longest = map[string]time.Duration{}
	}
	c.longest[kind] = max(c.longest[kind], d)
}

func (c *stats) of(what string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counts[what]
}

func (c *stats) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []string
	for what, n := range c.counts {
		list = append(list, fmt.Sprintf("%s: %d", what, n))
	}
	for what, d := range c.longest {
		list = append(list, fmt.Sprintf("%s: %v", what, d.Round(time.Millisecond)))
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}
