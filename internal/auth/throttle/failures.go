// Package throttle slows down whoever guesses passwords, and limits how many requests a client
// sends each second.
//
// # Failed log-ins
//
// Failures counts failed log-ins by account and by address, in the table loginfailures, which
// all replicas share. Each count is a bucket: it holds a number of failures at most (the burst),
// and forgets them at a constant rate. A log-in is refused, before its password is checked,
// while the bucket of its account or the bucket of its address is full. So guesses for one
// account are held to the account's rate, from however many addresses they come, and guesses
// from one address are held to the address's rate, for however many accounts. An address of
// IPv6 is counted as its /64, which is what a provider gives to one customer. Accounts that
// don't exist are counted in the same way, so that a refusal doesn't say whether an account
// exists. A row has hashes of names and addresses, so that long names take no more space.
//
// A stranger could lock out an account by wrong guesses. Therefore an account that has logged in
// from an address lately has a bucket of its own for that address: its log-ins from there aren't
// counted by the other buckets, nor refused because of them. Only a log-in with the right
// password makes such a bucket, so strangers can't make themselves room to guess. An attacker at
// one of those addresses gets the account's rate once more, and can lock the account out there,
// but not elsewhere. An account has a thousand such buckets, and one more replaces the one that was
// used least recently: who logs in from a million addresses takes no room from other accounts.
//
// Tokens of other issuers, by which robots log in, have buckets of their own (see ReserveToken), so
// that wrong passwords from an address don't keep the pipelines there from logging in.
//
// # Why concurrent guesses don't pass the limit
//
// Reserve counts a log-in as failed before the password is checked, and Succeeded takes that
// back. So of a thousand guesses at the same time only those are checked that find room. Reserve
// is one transaction (purser_reserve_login in package db's routines). It locks the rows of the
// account and the address, then reads them, and adds 1 to both if both have room, or nothing.
// Because of the locks, the changes of a row happen one after the other, on whatever replica,
// and each sees the one before. Thus a number never exceeds its burst. It decreases only by
// time, as the database's clock measures it, and by the return of a reservation. So in any time
// T at most burst + rate × T log-ins pass that aren't taken back. A process that dies between
// the two steps leaves a failure counted.
//
// A reservation that is returned only after its own 1 was forgotten may take off the 1 of
// another log-in. For an account's bucket this needs the account's password. For an address's
// bucket it needs a password of some account and log-ins that take seconds, and at most doubles
// what the address may try; the accounts' buckets still hold.
//
// There is no deadlock: all transactions lock at most one row of each kind, in the order account,
// address, pair (for tokens: robot, namespace, pair); the deletion of expired rows skips locked rows.
//
// The table stays small. A refused log-in adds no row. A row of an account or an address expires
// when its failures are forgotten (after 100 s at most, with the defaults), a pair's row when
// the log-in there is no longer recent. Every 64th reservation of a process deletes up to 1,000
// expired rows, while 64 log-ins add at most 192 rows.
//
// # Rates
//
// Rates limits the rate of requests of each key, which is an account or an address, for a bounded
// number of keys. Each replica keeps a bucket for each key and decides by this bucket alone, so a
// request never waits for the database. Each request that is admitted adds 1 to the level of its
// key's bucket, the level falls at the rate of the limit, and a request is refused if the level
// would exceed the burst. Refused requests add nothing.
//
// Replicas share the levels in the table requestrates, which has one row per key. While there are
// requests, each replica makes an exchange about once a second: one statement adds the requests
// that this replica has admitted since its last exchange, for the keys that had any, and returns
// the levels that result. The replica continues with these levels. PostgreSQL carries the exchange
// even if Redis is configured: each registry has PostgreSQL, a second way would have to be just as
// correct, and the cost is one statement per second and replica. A replica that is alone exchanges
// too, since it can't know whether another one has just started. The row has the time at which
// the bucket will be empty; after that time any replica may delete the row.
//
// How much a client can get by using all of n replicas: let r be the rate, b the burst and i the
// time between two exchanges of a replica, which is at most 1.1 s and the duration of an exchange.
// In any time T it gets at most
//
//	r·T + n·(b + r·i)
//
// requests: one burst and one interval's requests for each replica, once and not again and again,
// because the levels remember them. With the default burst of five seconds and two replicas, that
// is what the rate allows in T and 13 seconds more, while one replica alone allows T and 5 seconds.
// The reasons, where p is b + r·i:
//
//   - The requests that one replica adds in one exchange are at most p, since its own bucket has
//     admitted them in at most the time i.
//   - If a replica makes two exchanges, and other replicas add x in between, the shared level is at
//     most p + x after the second. Either the replica's own level, which began with the shared
//     level of the first and is b at most, has fallen no more than the shared one; or the shared
//     level has fallen to 0, and there is only x and what the second exchange has added.
//   - So the shared level never exceeds n·p. Look at the exchanges before a moment, back to the
//     last one by a replica that also made a later one, and let these two be u and v. The
//     exchanges between them, and those after v, are by different replicas, none by that of v, so
//     they are at most n-1 together. The level is at most p and what those between have added after
//     v, and each exchange after v adds at most p.
//   - The shared level falls by at most r·T in the time T. What was admitted in that time has
//     raised it, or would if all replicas made an exchange now. So it is at most r·T + n·p.
//
// If the database doesn't answer, each replica goes on with its own buckets, so a client can get
// the rate once per replica. The loop of the exchange logs the failures and tries again, after
// 10 s at the latest; the metric purser_worker_batches_total counts them. When the database
// answers again, each replica adds at most a burst of what it has admitted meanwhile. After a crash
// of PostgreSQL the table is empty, and the levels begin anew.
//
// The tables loginfailures and requestrates are unlogged, so that they cost no write-ahead log.
// After a crash of PostgreSQL the counts of failed log-ins begin again too.
package throttle

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/purser-registry/purser/internal/db"
)

const (
	// cleanEvery is how many reservations of a process it takes until it deletes expired rows,
	// and cleanRows is how many rows it deletes at most.
	cleanEvery = 64
	cleanRows  = 1000
	// returnTimeout bounds the return of a reservation. The request's own context doesn't: a
	// client that hangs up after its log-in has logged in nevertheless.
	returnTimeout = 10 * time.Second
)

// FailuresOptions configure Failures.
type FailuresOptions struct {
	DB *db.DB // required
	// AccountBurst is how many failed log-ins of an account are allowed at once, and
	// AccountEvery is the time after which one more is. Defaults: 10, 10 s.
	AccountBurst int
	AccountEvery time.Duration
	// AddressBurst and AddressEvery are the same for an address. Defaults: 50, 2 s.
	AddressBurst int
	AddressEvery time.Duration
	// Trust is how long after a log-in the account has a bucket of its own at that address.
	// Default 7 days.
	Trust   time.Duration
	Log     *slog.Logger          // default slog.Default()
	Metrics prometheus.Registerer // nil: none
}

// Failures counts failed log-ins. Its methods may be called concurrently.
type Failures struct {
	opt          FailuresOptions
	reservations atomic.Uint64
	refused      prometheus.Counter
}

// NewFailures makes a Failures. It starts no goroutine.
func NewFailures(o FailuresOptions) *Failures {
	o.AccountBurst = cmp.Or(o.AccountBurst, 10)
	o.AccountEvery = cmp.Or(o.AccountEvery, 10*time.Second)
	o.AddressBurst = cmp.Or(o.AddressBurst, 50)
	o.AddressEvery = cmp.Or(o.AddressEvery, 2*time.Second)
	o.Trust = cmp.Or(o.Trust, 7*24*time.Hour)
	o.Log = cmp.Or(o.Log, slog.Default())
	return &Failures{opt: o, refused: promauto.With(o.Metrics).NewCounter(prometheus.CounterOpts{
		Name: "purser_login_throttled_total",
		Help: "Log-ins that were refused without a check of the password, because too many have failed for the account or from the address.",
	})}
}

// Attempt is a log-in that is counted as failed until it succeeds.
type Attempt struct {
	failures *Failures
	pair     []byte // nil: the account or the address is unknown
	reserved [][]byte
	rates    []float64 // of reserved
}

// Reserve counts a log-in as failed, before its password is checked. The account's name is in
// the form in which accounts are stored, and needn't exist; the address is an IP address. Either
// may be "", and isn't counted then.
//
// If `wait` is 0, the caller checks the password. After a right one it calls Succeeded, after a
// wrong one nothing. It calls Cancel if it couldn't check the password. If `wait` isn't 0, too
// many log-ins have failed: the caller refuses the log-in, and may tell the client to try again
// after this time. An error comes from the database; the caller refuses the log-in then too.
func (f *Failures) Reserve(ctx context.Context, account, address string) (attempt *Attempt, wait time.Duration, err error) {
	address = Address(address)
	var buckets []bucketOf
	if account != "" {
		buckets = append(buckets, f.bucket('a', f.opt.AccountBurst, f.opt.AccountEvery, account))
	}
	if address != "" {
		buckets = append(buckets, f.bucket('d', f.opt.AddressBurst, f.opt.AddressEvery, address))
	}
	var pair []byte
	if len(buckets) == 2 {
		pair = pairOf(account, account, address)
	}
	return f.reserve(ctx, pair, buckets...)
}

// bucketOf is a bucket of failures: of what, its size, and how many failures are forgotten each
// second.
type bucketOf struct {
	subject     []byte
	burst, rate float64
}

func (f *Failures) bucket(kind byte, burst int, every time.Duration, names ...string) bucketOf {
	return bucketOf{subject(kind, names...), float64(burst), 1 / every.Seconds()}
}

// reserve is Reserve with buckets, in the order of their kinds in which rows are locked. pair is
// the bucket that replaces them if there is one, and may be nil.
func (f *Failures) reserve(ctx context.Context, pair []byte, buckets ...bucketOf) (attempt *Attempt, wait time.Duration, err error) {
	a := &Attempt{failures: f, pair: pair}
	subjects, bursts := [][]byte{}, []float64{}
	for _, b := range buckets {
		subjects, bursts, a.rates = append(subjects, b.subject), append(bursts, b.burst), append(a.rates, b.rate)
	}
	var seconds float64
	err = f.opt.DB.Pool.QueryRow(ctx, `
		SELECT reserved, wait FROM purser_reserve_login($1, $2, $3, $4)`,
		a.pair, subjects, bursts, a.rates).Scan(&a.reserved, &seconds)
	if err != nil {
		return nil, 0, fmt.Errorf("counting a log-in: %w", err)
	}
	if seconds > 0 {
		f.refused.Inc()
		return nil, max(time.Duration(seconds*float64(time.Second)), time.Millisecond), nil
	}
	if f.reservations.Add(1)%cleanEvery == 1 {
		f.clean(ctx)
	}
	return a, 0, nil
}

// Known says that the account has logged in from the address lately.
func (a *Attempt) Known() bool {
	return len(a.reserved) == 1 && a.pair != nil && bytes.Equal(a.reserved[0], a.pair)
}

// Succeeded says that the password was right: the log-in no longer counts as failed, and the
// account has logged in from this address. It works even if ctx has ended. After an error,
// which comes from the database, the log-in stays counted as failed; the account is logged in
// nevertheless.
func (a *Attempt) Succeeded(ctx context.Context) error { return a.giveBack(ctx, a.pair) }

// Cancel says that the password was not checked: the log-in no longer counts as failed. It
// works even if ctx has ended. A caller must not call it after a check with either result.
func (a *Attempt) Cancel(ctx context.Context) error { return a.giveBack(ctx, nil) }

// giveBack takes back what Reserve has counted. pair is nil if the log-in didn't succeed.
func (a *Attempt) giveBack(ctx context.Context, pair []byte) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), returnTimeout)
	defer cancel()
	_, err := a.failures.opt.DB.Pool.Exec(ctx, `
		SELECT purser_return_login($1, $2, $3, $4)`,
		a.reserved, a.rates, pair, a.failures.opt.Trust)
	if err != nil {
		return fmt.Errorf("counting a log-in as no failure: %w", err)
	}
	return nil
}

// clean deletes some expired rows. An error is only logged: the next reservations try again.
func (f *Failures) clean(ctx context.Context) {
	_, err := f.opt.DB.Pool.Exec(ctx, `
		DELETE FROM loginfailures WHERE subject = ANY (ARRAY(
			SELECT subject FROM loginfailures WHERE expires_at < now()
			ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED))`, cleanRows)
	if err != nil && ctx.Err() == nil {
		f.opt.Log.WarnContext(ctx, "couldn't delete old counts of failed log-ins", "error", err)
	}
}

// subjectSize is the size in bytes of the key of a row, except for pairs.
const subjectSize = 17

// subject returns the key of a row: its kind and a hash. The lengths are a part of the hashed
// text, so different names have different texts.
func subject(kind byte, names ...string) []byte {
	h := sha256.New()
	for _, name := range names {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(name))))
		h.Write([]byte(name))
	}
	return append([]byte{kind}, h.Sum(nil)[:subjectSize-1]...)
}

// ownerSize is the size in bytes of the hash of an owner in the key of a pair.
const ownerSize = 8

// pairOf returns the key of the pair of an account with an address. Keys of one owner begin alike:
// with p and a hash of the owner.
func pairOf(owner string, names ...string) []byte {
	key := subject('p', names...)
	return slices.Concat(key[:1], subject('p', owner)[1:1+ownerSize], key[1:])
}

// Address returns the text under which a client's IP address is counted: an IPv4 address as it
// is, an IPv6 address as its /64. It returns other texts unchanged.
func Address(text string) string {
	ip, err := netip.ParseAddr(text)
	if err != nil {
		return text
	}
	ip = ip.Unmap().WithZone("")
	if ip.Is4() {
		return ip.String()
	}
	return netip.PrefixFrom(ip, 64).Masked().String()
}
