// Package token issues and verifies registry tokens: the JSON Web Tokens of Docker's token
// protocol, which say what their holder may do in which repositories for the next minutes.
//
// # Keys
//
// Tokens are signed with Ed25519 keys in the table tokenkeys, which all replicas share. Each
// replica keeps the keys in memory and reads the table again every 30 s, so signing and
// verifying need no query. A replica that finds the newest key too old creates its successor,
// in a transaction with an advisory lock that looks again, so that replicas create one key
// together.
//
// # Why a rotation breaks no token
//
// A new key signs only after a lead of 2 min, in which every replica reads the table. Should a
// replica have missed the key nevertheless, it reads the table when it meets the key's id. A
// key verifies tokens until valid_until, which is later than signs_until by the lifetime of a
// token, twice the allowed difference of clocks, and a margin: no replica can have signed a
// token that lives longer. A key signs for a while after its successor does, so a replica that
// can't reach the database goes on signing with the keys that it knows.
//
// # Why a forged token isn't accepted
//
// A token's header must be, byte for byte, the header that Purser writes for a key in the
// table, so no other algorithm, key or extension comes into play. The signature covers the
// header and the claims. Only then are the claims used, and only if issuer, audience and times
// are right. A token with an unknown key id makes a replica read the table, but at most once
// per second, however many such tokens come.
//
// # The cache
//
// Verify keeps the claims of verified tokens, under a keyed SHA-256 of the whole token. An
// entry is used only until the token or its key expires, and only while no key has been removed
// or shortened since. So the cache never accepts a token that verifying again would refuse,
// unless this replica's clock was set back.
//
// The table has the private keys as they are: whoever can read it can forge tokens.
package token

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/worker"
)

const (
	// MaxTTL is the longest lifetime of a token. A token that claims a longer one is refused,
	// so replicas with different settings accept each other's tokens.
	MaxTTL = 24 * time.Hour
	// MinTTL is the shortest lifetime of a token: clients of Docker's protocol take 60 s for
	// granted.
	MinTTL = time.Minute
	// MaxBytes is the maximum length of a token.
	MaxBytes = 16 << 10
)

var (
	// ErrInvalid marks tokens that aren't valid, for whatever reason. The client has to get
	// another token. The text of the error says the reason and is fit for clients.
	ErrInvalid = errors.New("the registry token is not valid")
	// ErrExpired marks tokens that were valid until they expired. It is an ErrInvalid too.
	ErrExpired = fmt.Errorf("%w: it has expired", ErrInvalid)
	// ErrTooLarge says that a token with the claims would be larger than MaxBytes: the client
	// has to ask for fewer repositories at once.
	ErrTooLarge = fmt.Errorf("a token for all of these scopes would have more than %d bytes; ask for fewer repositories at once", MaxBytes)
	// ErrNoKey says that no key can sign at present: the database has been away for so long
	// that all known keys are too old.
	ErrNoKey = errors.New("no key that may sign registry tokens is known; the database has to be reachable to create one")
)

// Options configure Keys.
type Options struct {
	DB *db.DB // required
	// Issuer and Service are the claims iss and aud. All replicas have the same. Required.
	Issuer, Service string
	// TTL is the lifetime of a token, from MinTTL to MaxTTL. Default 5 min.
	TTL time.Duration
	// Rotate is the age at which a key gets a successor. Default 30 days.
	Rotate time.Duration
	// Lead is the time between a key's creation and its use. Default 2 min.
	Lead time.Duration
	// Skew is how much later or earlier by this replica's clock a token is accepted. Clocks
	// may differ by as much. Default 60 s.
	Skew time.Duration
	// Refresh is the interval at which the table of keys is read. Default 30 s.
	Refresh time.Duration
	// CacheBytes bounds the memory of verified tokens. Default 16 MiB.
	CacheBytes int64
	// Now is the clock. Default time.Now.
	Now     func() time.Time
	Log     *slog.Logger    // default slog.Default()
	Metrics *worker.Metrics // nil: none
}

// Keys issues and verifies registry tokens. Its methods may be called concurrently.
type Keys struct {
	opt   Options
	log   *slog.Logger
	loop  *worker.Loop
	cache *cache
	// interval is reloadInterval; tests change it.
	interval time.Duration
	set      atomic.Pointer[keySet] // the known keys; never nil

	// turn has an element while a goroutine reads or changes the table of keys. The fields
	// below belong to that goroutine.
	turn       chan struct{}
	attempt    time.Time // when the table was last read, by the monotonic clock; zero: never
	attemptErr error     // of that attempt

	waiting atomic.Int64 // requests with an unknown key id that wait for the table to be read
}

// NewKeys returns Keys that know no keys yet: Run, or the first call of a method, reads them
// from the database, and creates the first. NewKeys returns an error if an option is wrong.
func NewKeys(o Options) (*Keys, error) {
	o.TTL = cmp.Or(o.TTL, 5*time.Minute)
	o.Rotate = cmp.Or(o.Rotate, 30*24*time.Hour)
	o.Lead = cmp.Or(o.Lead, 2*time.Minute)
	o.Skew = cmp.Or(o.Skew, time.Minute)
	o.Refresh = min(cmp.Or(o.Refresh, 30*time.Second), o.Lead/4)
	o.CacheBytes = cmp.Or(o.CacheBytes, 16<<20)
	o.Log = cmp.Or(o.Log, slog.Default())
	if o.Now == nil {
		o.Now = time.Now
	}
	switch {
	case o.DB == nil || o.Issuer == "" || o.Service == "":
		return nil, errors.New("registry tokens need a database, an issuer and a service")
	case o.TTL < MinTTL || o.TTL > MaxTTL:
		return nil, fmt.Errorf("the lifetime of registry tokens is %v; it must be from %v to %v", o.TTL, MinTTL, MaxTTL)
	case o.Lead <= 0 || o.Skew < 0 || o.Rotate < 2*o.Lead:
		return nil, fmt.Errorf("keys of registry tokens rotate every %v; it must be at least twice the lead of %v", o.Rotate, o.Lead)
	}
	k := &Keys{
		opt:      o,
		log:      o.Log,
		cache:    newCache(o.CacheBytes),
		interval: reloadInterval,
		turn:     make(chan struct{}, 1),
	}
	k.set.Store(&keySet{})
	k.loop = worker.New(worker.Options{
		Name: "token-keys", Batch: k.batch, Idle: o.Refresh, Timeout: time.Minute,
		BackoffMax: o.Refresh, Log: o.Log, Metrics: o.Metrics,
	})
	return k, nil
}
