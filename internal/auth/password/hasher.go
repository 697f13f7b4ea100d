// Package password hashes and checks the passwords of accounts.
//
// A Hasher makes argon2id hashes, and checks passwords against them and against bcrypt hashes.
// A File is an htpasswd file of the operator. A Cache holds the checks that succeeded lately, so
// that a client that sends its password with each request doesn't cost a hash each time. Check
// and Generate are the rules for new passwords.
//
// The package keeps these rules:
//
//   - Log-ins can't starve other requests. Only a few hashes are computed at once, so most
//     processors stay free, and by processes of low priority (see Work), since a hash takes
//     a processor for tens of milliseconds and 19 MiB of memory. Only a bounded number of
//     log-ins waits for its turn; further ones get ErrBusy at once. Each address and each
//     account has a share of the waiting places, and accounts that have logged in from the same
//     address lately come first (see limit.Queue). The memory of a hash and
//     its time are bounded too, even if somebody has planted a stored hash with other
//     parameters.
//   - The time of a check doesn't say whether an account exists. For an account without a
//     password hash, Verify computes a hash all the same. The times are equal only among
//     accounts with the same kind of hash: in a registry with an htpasswd file, the caller checks
//     a password that is refused against File.Decoys too.
//   - Passwords and hashes appear in no log and no error. The Cache doesn't contain them, nor
//     anything from which they could be computed without a key that is only in this process's
//     memory.
//   - Only successful checks are cached. A wrong password is checked, and counted by the
//     caller's limit on failures, each time. The hash is a part of the cache's key, so a
//     password that was changed isn't valid any longer, even in another process's cache.
//
// Processes of low priority compute the hashes ("purser hash-passwords", started by serve). In the
// registry's own process, hashes of 19 MiB and 25 ms would raise the p99 of pulls beside a hundred
// log-ins a second from 2 ms to 20 ms, also by the garbage that they leave.
package password

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/purser-registry/purser/internal/limit"
)

// ErrBusy says that too many log-ins wait for their turn already. The client may try again
// after some seconds.
var ErrBusy = errors.New("too many passwords are being checked at the moment; try again in some seconds")

// dummy is a hash of no password: it has the parameters of new hashes and a key of zeros.
var dummy = argon2Hash{memoryKiB: memoryKiB, passes: passes, threads: threads, salt: make([]byte, saltBytes), key: make([]byte, keyBytes)}.String()

// HasherOptions configure a Hasher.
type HasherOptions struct {
	// Workers is how many hashes are computed at once; each takes 19 MiB of memory, and a
	// processor for about 25 ms. Default: a quarter of the processors, at least 1.
	Workers int
	// Queue is how many callers may wait for their turn. Default 64. A quarter of the places is
	// for one address or account.
	Queue int
	// Command returns a command that calls Work; it runs for each worker and outlives a hash.
	// Hashes then are computed at low priority, and their memory doesn't make this process
	// collect garbage. If the command fails, this process computes the hash. Nil: this process
	// computes all hashes.
	Command func() *exec.Cmd
	// Log gets a warning when Command fails. Nil: none.
	Log *slog.Logger
	// Metrics registers the metrics. Nil: none.
	Metrics prometheus.Registerer
	// Computes is called with the stored hash before each check of a password, at the caller's turn.
	// Tests count by it what a log-in costs. Nil: none.
	Computes func(hash string)
}

// Hasher computes a bounded number of hashes at once. Callers wait in a bounded queue, in which
// each client has a share. Its methods may be called concurrently.
type Hasher struct {
	queue *limit.Queue
	free  chan *process // the processes that compute no hash; nil without HasherOptions.Command
	log   *slog.Logger
	hook  func(hash string)

	length  prometheus.Gauge
	refused prometheus.Counter
	took    *prometheus.HistogramVec
}

// NewHasher makes a Hasher. It starts no goroutine, and a process of HasherOptions.Command only
// with the first hash: call Close if there is a command.
func NewHasher(o HasherOptions) *Hasher {
	factory := promauto.With(o.Metrics)
	workers := cmp.Or(o.Workers, max(1, runtime.GOMAXPROCS(0)/4))
	var free chan *process
	if o.Command != nil {
		free = make(chan *process, workers)
		for range workers {
			free <- &process{command: o.Command}
		}
	}
	return &Hasher{
		queue: limit.NewQueue(workers, cmp.Or(o.Queue, 64)),
		free:  free,
		log:   cmp.Or(o.Log, slog.New(slog.DiscardHandler)),
		hook:  o.Computes,
		length: factory.NewGauge(prometheus.GaugeOpts{
			Name: "purser_password_queue_length", Help: "Log-ins that wait until a hash can be computed.",
		}),
		refused: factory.NewCounter(prometheus.CounterOpts{
			Name: "purser_password_refused_total", Help: "Log-ins that were refused because too many waited already.",
		}),
		took: factory.NewHistogramVec(prometheus.HistogramOpts{
			Name: "purser_password_hash_duration_seconds", Help: "Time that the computation of a password's hash took, by algorithm.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5},
		}, []string{"algorithm"}),
	}
}

// Close ends the processes of HasherOptions.Command. It waits for hashes that are being
// computed. Further calls compute their hashes in this process.
func (h *Hasher) Close() {
	for range cap(h.free) {
		p := <-h.free
		p.stop()
		p.command = nil
		defer func() { h.free <- p }()
	}
}

// Hash returns an argon2id hash of the password in the PHC string format. It returns ErrBusy if
// the queue is full, and the context's error if the context ends before it is the caller's
// turn. The caller has checked the password with Check.
func (h *Hasher) Hash(ctx context.Context, password string) (phc string, err error) {
	err = h.run(ctx, "argon2id", func() { phc = h.compute(task{Password: []byte(password)}).Hash })
	return phc, err
}

// Verify says whether the password is the one that the hash was made from: an argon2id hash in
// the PHC string format, or a bcrypt hash ($2a$, $2b$ or $2y$; as everywhere, bcrypt looks at
// the first 72 bytes of a password only). The hash "" stands for an account that doesn't exist
// or has no password: the check takes as long as one of Hash's hashes, and the result is
// false. The same holds for an empty password and for one of more than MaxLength bytes. Errors:
// ErrBusy if the queue is full, the context's error if the context ends before it is the
// caller's turn, and an error without any part of the hash if the hash is of another kind.
func (h *Hasher) Verify(ctx context.Context, password, hash string) (ok bool, err error) {
	possible := hash != "" && password != "" && len(password) <= MaxLength
	if hash == "" {
		hash = dummy
	}
	password = password[:min(len(password), MaxLength)]
	algorithm := "argon2id"
	if strings.HasPrefix(hash, "$2") {
		algorithm = "bcrypt"
	}
	var r result
	check := func() {
		if h.hook != nil {
			h.hook(hash)
		}
		r = h.compute(task{Password: []byte(password), Hash: []byte(hash)})
	}
	if err := h.run(ctx, algorithm, check); err != nil {
		return false, err
	}
	if r.Invalid {
		return false, errHash
	}
	return r.OK && possible, nil
}

// compute does a task in a process of its own if there is one. It is the caller's turn.
func (h *Hasher) compute(t task) result {
	if h.free == nil {
		return t.compute()
	}
	p := <-h.free
	defer func() { h.free <- p }()
	if p.command == nil { // closed
		return t.compute()
	}
	r, err := p.compute(t)
	if err != nil {
		h.log.Warn("a process that hashes passwords failed; the hash is computed in this process", "error", err)
		return t.compute()
	}
	return r
}

// run calls f when it is the caller's turn.
func (h *Hasher) run(ctx context.Context, algorithm string, f func()) error {
	if err := h.enter(ctx); err != nil {
		return err
	}
	defer h.queue.Leave()
	start := time.Now()
	f()
	h.took.WithLabelValues(algorithm).Observe(time.Since(start).Seconds())
	return nil
}

// enter waits until it is the caller's turn.
func (h *Hasher) enter(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	err := h.queue.EnterObserved(ctx, func() func() { h.length.Inc(); return h.length.Dec })
	if errors.Is(err, limit.ErrFull) {
		h.refused.Inc()
		return ErrBusy
	}
	return err
}
