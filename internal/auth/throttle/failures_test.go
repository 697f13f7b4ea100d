package throttle

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
)

// rig is a Failures on a database of its own.
type rig struct {
	*Failures
	db *db.DB
}

func newRig(t *testing.T, o FailuresOptions) rig {
	t.Helper()
	o.DB = dbtest.New(t)
	return rig{NewFailures(o), o.DB}
}

// try reserves a log-in and returns nil if it is refused.
func (r rig) try(t *testing.T, account, address string) *Attempt {
	t.Helper()
	a, wait, err := r.Reserve(t.Context(), account, address)
	must(t, err)
	if (a == nil) != (wait > 0) {
		t.Fatalf("the attempt is %v, the wait %v", a, wait)
	}
	return a
}

// fail lets log-ins fail until one is refused, at most `most`, and returns how many passed.
func (r rig) fail(t *testing.T, account, address string, most int) int {
	t.Helper()
	for n := range most {
		if r.try(t, account, address) == nil {
			return n
		}
	}
	return most
}

// pass makes all rows older, as if time had passed.
func (r rig) pass(t *testing.T, d time.Duration) {
	t.Helper()
	exec(t, r.db, "UPDATE loginfailures SET updated_at = updated_at - $1::interval, expires_at = expires_at - $1::interval", d)
}

// slow has rates so low that no failure is forgotten during a test.
var slow = FailuresOptions{AccountEvery: 1000 * time.Hour, AddressEvery: 1000 * time.Hour}

func TestAccountIsLimitedFromManyAddresses(t *testing.T) {
	t.Parallel()
	r := newRig(t, FailuresOptions{})
	passed := 0
	for n := range 30 {
		if r.try(t, "ann", fmt.Sprintf("192.0.2.%d", n)) != nil {
			passed++
		}
	}
	if passed != 10 {
		t.Errorf("%d guesses passed, want 10", passed)
	}
	if r.try(t, "bob", "192.0.2.1") == nil {
		t.Error("another account is refused")
	}
	_, wait, err := r.Reserve(t.Context(), "ann", "192.0.2.99")
	must(t, err)
	if wait <= 5*time.Second || wait > 10*time.Second {
		t.Errorf("the wait is %v, want almost 10 s", wait)
	}
	r.pass(t, 25*time.Second)
	if n := r.fail(t, "ann", "192.0.2.200", 100); n != 2 && n != 3 { // 3 on a slow machine
		t.Errorf("%d guesses passed after 25 s, want 2", n)
	}
	r.pass(t, time.Hour)
	if n := r.fail(t, "ann", "192.0.2.201", 100); n != 10 {
		t.Errorf("%d guesses passed after an hour, want 10", n)
	}
	if n := testutil.ToFloat64(r.refused); n != 23 {
		t.Errorf("%v refusals are counted, want 23", n)
	}
}

func TestAddressIsLimitedForManyAccounts(t *testing.T) {
	t.Parallel()
	r := newRig(t, slow)
	passed := 0
	for n := range 80 {
		// Addresses of one /64 count as one.
		if r.try(t, fmt.Sprint("user", n), fmt.Sprintf("2001:db8::%x", n)) != nil {
			passed++
		}
	}
	if passed != 50 {
		t.Errorf("%d guesses passed, want 50", passed)
	}
	if r.try(t, "ann", "2001:db8:0:1::1") == nil {
		t.Error("another network is refused")
	}
	// A log-in that is refused because of the address doesn't count for the account.
	if n := r.fail(t, "victim", "2001:db8::1", 20); n != 0 {
		t.Errorf("%d guesses passed, want 0", n)
	}
	if n := count(t, r.db, "SELECT count(*) FROM loginfailures WHERE subject = $1", subject('a', "victim")); n != 0 {
		t.Error("a refused log-in left a row")
	}
	if n := r.fail(t, "victim", "198.51.100.1", 20); n != 10 {
		t.Errorf("%d guesses passed from elsewhere, want 10", n)
	}
}

// A full account takes nothing from the address either.
func TestRefusalByAccountCountsNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, slow)
	if n := r.fail(t, "ann", "192.0.2.1", 100); n != 10 {
		t.Fatalf("%d passed, want 10", n)
	}
	if n := count(t, r.db, "SELECT failures FROM loginfailures WHERE subject = $1", subject('d', "192.0.2.1")); n < 9.99 || n > 10 {
		t.Errorf("the address has %v failures, want 10", n)
	}
}

func TestSuccessesAreNotLimited(t *testing.T) {
	t.Parallel()
	r := newRig(t, slow)
	for n := range 100 {
		a := r.try(t, "ann", "192.0.2.1")
		if a == nil {
			t.Fatalf("log-in %d was refused", n)
		}
		must(t, a.Succeeded(t.Context()))
	}
	for n := range 100 {
		a := r.try(t, fmt.Sprint("user", n), "192.0.2.2")
		if a == nil {
			t.Fatalf("the log-in of user %d was refused", n)
		}
		must(t, a.Succeeded(t.Context()))
	}
}

// A client that hangs up after its log-in has logged in. One that leaves the queue before the
// check counts as neither.
func TestReturnAfterTheRequestEnded(t *testing.T) {
	t.Parallel()
	r := newRig(t, slow)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 {
		a := r.try(t, "ann", "192.0.2.1")
		if a == nil {
			t.Fatal("refused, although each attempt was cancelled")
		}
		must(t, a.Cancel(ended))
	}
	if n := count(t, r.db, "SELECT count(*) FROM loginfailures WHERE get_byte(subject, 0) = ascii('p')"); n != 0 {
		t.Error("a cancelled log-in counts as a success")
	}
	must(t, r.try(t, "ann", "192.0.2.1").Succeeded(ended))
	if n := count(t, r.db, "SELECT count(*) FROM loginfailures WHERE get_byte(subject, 0) = ascii('p')"); n != 1 {
		t.Errorf("%v pairs after a success, want 1", n)
	}
	if n := count(t, r.db, "SELECT sum(failures) FROM loginfailures"); n != 0 {
		t.Errorf("%v failures are counted, want 0", n)
	}
}

// Nobody can lock an account out of an address from which it has logged in lately, except from
// that address.
func TestVictimIsNotLockedOut(t *testing.T) {
	t.Parallel()
	r := newRig(t, slow)
	const home, office, attacker = "192.0.2.1", "2001:db8:1::1", "198.51.100.1"
	first := r.try(t, "ann", home)
	if first.Known() {
		t.Error("home is known before the first log-in")
	}
	must(t, first.Succeeded(t.Context()))
	must(t, r.try(t, "ann", office).Succeeded(t.Context()))
	if n := r.fail(t, "ann", attacker, 100); n != 10 {
		t.Errorf("%d guesses passed, want 10", n)
	}
	// Somebody else at home guesses the passwords of other accounts.
	for n := range 100 {
		r.try(t, fmt.Sprint("user", n), home)
	}
	if r.try(t, "bob", home) != nil {
		t.Error("the address has room left")
	}
	for n := range 3 {
		if a := r.try(t, "ann", home); a == nil {
			t.Fatalf("log-in %d at home was refused", n)
		} else if !a.Known() {
			t.Errorf("at log-in %d, home isn't known", n)
		} else {
			must(t, a.Succeeded(t.Context()))
		}
	}
	if r.try(t, "ann", "203.0.113.7") != nil {
		t.Error("a log-in from a new address isn't refused during the attack")
	}
	// The pair's own bucket is limited too, and doesn't concern other addresses.
	if n := r.fail(t, "ann", home, 100); n != 10 {
		t.Errorf("%d guesses passed at home, want 10", n)
	}
	if r.try(t, "ann", "2001:db8:1::2") == nil {
		t.Error("refused at the office because of guesses at home")
	}
	// After a week without a log-in, home is an address like any other.
	r.pass(t, 7*24*time.Hour)
	if r.try(t, "ann", home) != nil {
		t.Error("home has a bucket of its own after a week")
	}
}

func TestUnknownAccountOrAddress(t *testing.T) {
	t.Parallel()
	r := newRig(t, slow)
	if n := r.fail(t, "", "192.0.2.1", 100); n != 50 {
		t.Errorf("%d passed for an address alone, want 50", n)
	}
	if n := r.fail(t, "ann", "", 100); n != 10 {
		t.Errorf("%d passed for an account alone, want 10", n)
	}
	a := r.try(t, "", "")
	if a == nil {
		t.Fatal("refused without account and address")
	}
	must(t, a.Succeeded(t.Context()))
	must(t, r.try(t, "", "192.0.2.2").Succeeded(t.Context()))
	must(t, r.try(t, "bob", "").Succeeded(t.Context()))
	if n := count(t, r.db, "SELECT count(*) FROM loginfailures WHERE get_byte(subject, 0) = ascii('p')"); n != 0 {
		t.Errorf("%v pairs, want 0", n)
	}
}

func TestExpiredRowsAreDeleted(t *testing.T) {
	t.Parallel()
	r := newRig(t, FailuresOptions{})
	for n := range 200 {
		a := r.try(t, strings.Repeat("long", 1000)+fmt.Sprint(n), fmt.Sprintf("192.0.2.%d", n))
		if n < 50 {
			must(t, a.Succeeded(t.Context()))
		}
	}
	if n := count(t, r.db, "SELECT count(*) FROM loginfailures WHERE expires_at > now()"); n < 300 { // fewer than 450 on a slow machine
		t.Errorf("%v rows, want about 450", n)
	}
	if n := count(t, r.db, "SELECT max(length(subject)) FROM loginfailures"); n != subjectSize+ownerSize {
		t.Errorf("a subject has %v bytes, want %d", n, subjectSize+ownerSize)
	}
	// Rows of accounts and addresses go first, those of pairs after a week.
	for _, tt := range []struct {
		age  time.Duration
		want float64
	}{{time.Minute, 50}, {7 * 24 * time.Hour, 0}} {
		r.pass(t, tt.age)
		for range cleanEvery {
			must(t, r.try(t, "ann", "198.51.100.1").Cancel(t.Context()))
		}
		if n := count(t, r.db, "SELECT count(*) FROM loginfailures"); n != tt.want+2 {
			t.Errorf("%v rows after %v, want %v and 2 of the last log-ins", n, tt.age, tt.want)
		}
	}
}

// A huge table gets no new pairs, but keeps those that it has.
func TestPairsAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, slow)
	must(t, r.try(t, "ann", "192.0.2.1").Succeeded(t.Context()))
	r.pass(t, 24*time.Hour)
	exec(t, r.db, "UPDATE pg_class SET reltuples = 2e6 WHERE oid = 'loginfailures'::regclass")
	must(t, r.try(t, "ann", "192.0.2.1").Succeeded(t.Context()))
	must(t, r.try(t, "ann", "192.0.2.2").Succeeded(t.Context()))
	if n := count(t, r.db, "SELECT count(*) FROM loginfailures WHERE get_byte(subject, 0) = ascii('p')"); n != 1 {
		t.Errorf("%v pairs, want 1", n)
	}
	if n := count(t, r.db, "SELECT count(*) FROM loginfailures WHERE subject = $1 AND expires_at > now() + interval '6 days 23 hours'", pairOf("ann", "ann", "192.0.2.1")); n != 1 {
		t.Error("the pair wasn't renewed")
	}
}

// An account that logs in from many addresses takes no room from others: a new address replaces the one that was
// used least recently, of this account or of robots of this namespace, even if the table is huge.
func TestPairsOfAnAccountAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, slow)
	token := func(robot, address string) *Attempt {
		t.Helper()
		a, _, err := r.ReserveToken(t.Context(), robot, address)
		must(t, err)
		return a
	}
	login := map[string]func(address string) *Attempt{
		"ann":   func(address string) *Attempt { return r.try(t, "ann", address) },
		"acme+": func(address string) *Attempt { return token("acme+robot"+address, address) },
	}
	others := []func() *Attempt{
		func() *Attempt { return r.try(t, "bob", "192.0.2.1") },
		func() *Attempt { return token("beta+robot", "192.0.2.1") },
	}
	for _, other := range others {
		must(t, other().Succeeded(t.Context()))
	}
	r.pass(t, time.Hour)
	for owner, try := range login {
		must(t, try("192.0.2.1").Succeeded(t.Context()))
		r.pass(t, time.Hour)
		must(t, try("192.0.2.2").Succeeded(t.Context()))
		var rest [][]byte
		for n := range 998 {
			rest = append(rest, pairOf(owner, owner, fmt.Sprint(n)))
		}
		exec(t, r.db, "INSERT INTO loginfailures SELECT s, 0, now(), now() + interval '7 days' FROM unnest($1::bytea[]) s", rest)
	}
	exec(t, r.db, "UPDATE pg_class SET reltuples = 2e6 WHERE oid = 'loginfailures'::regclass")
	for owner, try := range login {
		must(t, try("192.0.2.3").Succeeded(t.Context()))
		for address, want := range map[string]bool{"192.0.2.1": false, "192.0.2.2": true, "192.0.2.3": true} {
			if a := try(address); a.Known() != want {
				t.Errorf("%s is known at %s: %v, want %v", owner, address, a.Known(), want)
			}
		}
	}
	for n, other := range others {
		if !other().Known() {
			t.Errorf("account %d of others is no longer known at its address", n)
		}
	}
	if n := count(t, r.db, "SELECT count(*) FROM loginfailures WHERE get_byte(subject, 0) = ascii('p')"); n != 2002 {
		t.Errorf("%v pairs, want 2002", n)
	}
}

func TestDatabaseAway(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	r := newRig(t, FailuresOptions{Log: slog.New(slog.NewTextHandler(&log, nil))})
	a := r.try(t, "ann", "192.0.2.1")
	r.db.Close()
	if again, wait, err := r.Reserve(t.Context(), "ann", "192.0.2.1"); err == nil || again != nil || wait != 0 {
		t.Errorf("without a database: %v, %v, %v, want an error", again, wait, err)
	}
	if err := a.Succeeded(t.Context()); err == nil {
		t.Error("a success was counted without a database")
	}
	r.clean(t.Context())
	if !strings.Contains(log.String(), "couldn't delete old counts") {
		t.Errorf("logged %q", log.String())
	}
}

func TestAddress(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"192.0.2.1":                    "192.0.2.1",
		"::ffff:192.0.2.1":             "192.0.2.1",
		"2001:db8::1":                  "2001:db8::/64",
		"2001:DB8:0:0:ffff:ffff::1":    "2001:db8::/64",
		"2001:db8:0:1::1":              "2001:db8:0:1::/64",
		"fe80::1%eth0":                 "fe80::/64",
		"":                             "",
		"@":                            "@",
		"not an address":               "not an address",
		"2001:db8:ffff:ffff:1:2:3:4":   "2001:db8:ffff:ffff::/64",
		"2001:db8:ffff:ffff:1:2:3:4:5": "2001:db8:ffff:ffff:1:2:3:4:5",
	} {
		if got := Address(text); got != want {
			t.Errorf("Address(%q) = %q, want %q", text, got, want)
		}
	}
	if bytes.Equal(subject('p', "ab", "c"), subject('p', "a", "bc")) || bytes.Equal(subject('a', "x"), subject('d', "x")) {
		t.Error("different subjects have equal keys")
	}
}
