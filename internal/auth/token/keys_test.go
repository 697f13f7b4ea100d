package token

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
)

func TestIssueAndVerify(t *testing.T) {
	t.Parallel()
	d, c := dbtest.New(t), newClock()
	k := withClock(t, d, c.now)
	for _, want := range []Claims{example(), {Access: []Access{repository("a", "pull")}}, {Account: 1, Name: "ns+robot"}} {
		raw, expires, err := k.Issue(t.Context(), want)
		must(t, err)
		if want.Access == nil {
			want.Access = []Access{} // clients and registries expect an array
		}
		for range 2 { // the second time from the cache
			got, err := k.Verify(t.Context(), raw)
			must(t, err)
			if got.ID == "" || !got.ExpiresAt.Equal(expires) || expires.Sub(got.IssuedAt) != 5*time.Minute || c.now().Sub(got.IssuedAt) > time.Second {
				t.Errorf("got %+v, expires %v", got, expires)
			}
			want.ID, want.IssuedAt, want.ExpiresAt = got.ID, got.IssuedAt, got.ExpiresAt
			if !reflect.DeepEqual(*got, want) {
				t.Errorf("got %+v, want %+v", *got, want)
			}
		}
	}
	raw := issue(t, k, example())
	if got, want := string(part(t, raw, 0)), `{"alg":"EdDSA","kid":"`+k.set.Load().list[0].id+`","typ":"JWT"}`; got != want {
		t.Errorf("the header is %s, want %s", got, want)
	}
	m := payloadOf(t, raw)
	delete(m, "jti")
	if got := fmt.Sprintf("%v %v %v %v %v %v", m["iss"], m["sub"], m["uid"], m["aud"], m["access"], m["refused"]); got !=
		testIssuer+" alice 7 "+testService+" [map[actions:[pull push] name:acme/app type:repository] map[actions:[*] name:catalog type:registry]]"+
			" [map[actions:[delete] name:acme/app type:repository] map[actions:[*] name:other/app type:repository]]" {
		t.Errorf("the claims are %s", got)
	}
	if a, b := issue(t, k, example()), issue(t, k, example()); a == b {
		t.Error("two tokens are the same")
	}
}

func TestIssueRefuses(t *testing.T) {
	t.Parallel()
	k := newKeys(t, dbtest.New(t), nil)
	for name, c := range map[string]Claims{
		"an invalid name":      {Access: []Access{repository("localhost:5000/a", "pull")}},
		"an empty name":        {Access: []Access{repository("", "pull")}},
		"another type":         {Access: []Access{{Type: "artifact", Name: "a", Actions: []string{"pull"}}}},
		"another registry":     {Access: []Access{{Type: "registry", Name: "users", Actions: []string{"*"}}}},
		"a name alone":         {Name: "alice"},
		"an account alone":     {Account: 7},
		"a token for too much": {Access: []Access{repository("a", strings.Repeat("x", MaxBytes))}},
	} {
		raw, _, err := k.Issue(t.Context(), c)
		if err == nil || raw != "" || errors.Is(err, ErrTooLarge) != strings.HasSuffix(name, "much") {
			t.Errorf("%s: got %q, %v", name, raw, err)
		}
	}
	// An odd name may be refused to a client, though.
	raw := issue(t, k, Claims{Refused: []Access{repository("localhost:5000/a", "pull")}})
	if c, err := k.Verify(t.Context(), raw); err != nil || !c.WasRefused("localhost:5000/a", "pull") {
		t.Errorf("got %v, %v", c, err)
	}
}

func TestOptions(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	for name, o := range map[string]Options{
		"no database":  {Issuer: "i", Service: "s"},
		"no issuer":    {DB: d, Service: "s"},
		"no service":   {DB: d, Issuer: "i"},
		"short":        {DB: d, Issuer: "i", Service: "s", TTL: 59 * time.Second},
		"long":         {DB: d, Issuer: "i", Service: "s", TTL: MaxTTL + 1},
		"quick rotate": {DB: d, Issuer: "i", Service: "s", Rotate: 3 * time.Minute},
	} {
		if _, err := NewKeys(o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestAllows(t *testing.T) { // not parallel, as it counts allocations
	c := example()
	c.Access = append(c.Access, repository("star/app", "*"), Access{Type: "artifact", Name: "a", Actions: []string{"pull"}})
	for _, x := range []struct {
		name, action     string
		allowed, refused bool
	}{
		{"acme/app", "pull", true, false}, {"acme/app", "push", true, false}, {"acme/app", "delete", false, true},
		{"acme/app", "*", false, false}, {"acme/app", "", false, false}, {"acme/ap", "pull", false, false}, {"acme", "pull", false, false},
		{"other/app", "pull", false, true}, {"other/app", "delete", false, true}, {"", "", false, false},
		{"star/app", "pull", false, false}, {"a", "pull", false, false}, {"catalog", "*", false, false},
	} {
		if got := c.Allows(x.name, x.action); got != x.allowed {
			t.Errorf("Allows(%q, %q) is %v", x.name, x.action, got)
		}
		if got := c.WasRefused(x.name, x.action); got != x.refused {
			t.Errorf("WasRefused(%q, %q) is %v", x.name, x.action, got)
		}
	}
	if !c.AllowsCatalog() || (&Claims{Access: []Access{repository("catalog", "*")}}).AllowsCatalog() {
		t.Error("only registry:catalog:* allows the catalog")
	}
	// A client asked for all actions and got one of them: that one isn't refused.
	c = Claims{Access: []Access{repository("a", "pull")}, Refused: []Access{repository("a", "*")}}
	if c.WasRefused("a", "pull") || !c.WasRefused("a", "push") {
		t.Error("a granted action counts as refused, or another doesn't")
	}
	if n := testing.AllocsPerRun(100, func() { c.Allows("a", "push"); c.WasRefused("a", "push"); c.AllowsCatalog() }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestReplicasMakeOneKey starts many replicas at once, at the beginning and when the key is
// due to be replaced.
func TestReplicasMakeOneKey(t *testing.T) {
	t.Parallel()
	d, c := dbtest.New(t), newClock()
	var replicas []*Keys
	for i := range 8 {
		replicas = append(replicas, withClock(t, d, c.shifted(time.Duration(i)*4*time.Second)))
	}
	together := func() {
		var wg sync.WaitGroup
		for _, k := range replicas {
			wg.Go(func() {
				if _, err := k.batch(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	together()
	if n := countKeys(t, d); n != 1 {
		t.Fatalf("%d first keys", n)
	}
	for _, k := range replicas { // the first key signs at once, whatever the clocks
		for _, other := range replicas {
			if _, err := other.Verify(t.Context(), issue(t, k, example())); err != nil {
				t.Fatal(err)
			}
		}
	}
	c.advance(30*24*time.Hour - time.Minute)
	maintain(t, replicas[0])
	if n := countKeys(t, d); n != 1 {
		t.Fatalf("%d keys before one is due", n)
	}
	c.advance(time.Minute)
	together()
	if n := countKeys(t, d); n != 2 {
		t.Fatalf("%d keys when the second is due", n)
	}
	first, second := replicas[7].set.Load().list[0], replicas[7].set.Load().list[1]
	if s, _ := replicas[0].usable(); s.id != first.id {
		t.Error("the second key signs already")
	}
	c.advance(2*time.Minute + 30*time.Second)
	together() // replicas whose clock was behind may have read the keys before there was the second
	for _, k := range replicas {
		if s, _ := k.usable(); s.id != second.id {
			t.Error("the second key doesn't sign yet")
		}
	}
	if got, want := second.validUntil.Sub(second.signsUntil), 5*time.Minute+2*time.Minute+time.Minute; got != want {
		t.Errorf("a key is valid %v longer than it signs, want %v", got, want)
	}
	c.advance(10 * 24 * time.Hour)
	maintain(t, replicas[0])
	if n := countKeys(t, d); n != 1 {
		t.Errorf("%d keys after the first has ended", n)
	}
}

// TestExpiry checks to the second when a token is accepted.
func TestExpiry(t *testing.T) {
	t.Parallel()
	d, c := dbtest.New(t), newClock()
	// Tokens have whole seconds.
	c.t.Store(c.now().Truncate(time.Second).UnixNano())
	k, fresh := withClock(t, d, c.now), withClock(t, d, c.now)
	raw := issue(t, k, example())
	c.advance(-time.Minute)
	if _, err := fresh.Verify(t.Context(), raw); err != nil {
		t.Errorf("a minute before: %v", err)
	}
	c.advance(-time.Second)
	if _, err := withClock(t, d, c.now).Verify(t.Context(), raw); !errors.Is(err, ErrInvalid) || errors.Is(err, ErrExpired) {
		t.Errorf("more than a minute before: %v", err)
	}
	c.advance(time.Second + 7*time.Minute - time.Nanosecond)
	for _, v := range []*Keys{k, fresh} {
		if _, err := v.Verify(t.Context(), raw); err != nil {
			t.Errorf("just before the end: %v", err)
		}
	}
	c.advance(time.Nanosecond)
	for _, v := range []*Keys{k, fresh, withClock(t, d, c.now)} { // the first two have cached it
		if _, err := v.Verify(t.Context(), raw); !errors.Is(err, ErrExpired) {
			t.Errorf("at the end: %v", err)
		}
	}
}

// TestClocksApart has two replicas whose clocks are 30 s apart.
func TestClocksApart(t *testing.T) {
	t.Parallel()
	d, c := dbtest.New(t), newClock()
	late, early := withClock(t, d, c.now), withClock(t, d, c.shifted(30*time.Second))
	first, second := issue(t, early, example()), issue(t, late, example())
	if countKeys(t, d) != 1 {
		t.Error("the replica that is behind hasn't taken the key of the other")
	}
	for _, at := range []time.Duration{0, 4 * time.Minute, time.Minute - time.Second} {
		c.advance(at)
		for _, k := range []*Keys{late, early} {
			for _, raw := range []string{first, second} {
				if _, err := k.Verify(t.Context(), raw); err != nil {
					t.Errorf("after %v: %v", at, err)
				}
			}
		}
	}
	c.advance(time.Minute + 2*time.Second)
	if _, err := early.Verify(t.Context(), second); !errors.Is(err, ErrExpired) {
		t.Errorf("an expired token: %v", err)
	}
}

// TestRemovedKey checks that tokens of a key that is gone are refused, also those in the cache.
func TestRemovedKey(t *testing.T) {
	t.Parallel()
	d, c := dbtest.New(t), newClock()
	k := withClock(t, d, c.now)
	raw := issue(t, k, example())
	if _, err := k.Verify(t.Context(), raw); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Pool.Exec(t.Context(), "DELETE FROM tokenkeys"); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Verify(t.Context(), raw); err != nil {
		t.Errorf("before the keys are read again: %v", err)
	}
	maintain(t, k)
	if countKeys(t, d) != 1 {
		t.Error("there is no new key")
	}
	refused(t, k, "a token of a removed key", raw)
	if _, err := k.Verify(t.Context(), issue(t, k, example())); err != nil {
		t.Error(err)
	}
	// A key that ends earlier than was known.
	raw = issue(t, k, example())
	if _, err := k.Verify(t.Context(), raw); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Pool.Exec(t.Context(), "UPDATE tokenkeys SET valid_until = $1", c.now()); err != nil {
		t.Fatal(err)
	}
	maintain(t, k)
	refused(t, k, "a token of an ended key", raw)
	// A key that gets another private part under its id.
	raw = issue(t, k, example())
	if _, err := k.Verify(t.Context(), raw); err != nil {
		t.Fatal(err)
	}
	seed := make([]byte, 32)
	rand.Read(seed)
	if _, err := d.Pool.Exec(t.Context(), "UPDATE tokenkeys SET private_key = $1", seed); err != nil {
		t.Fatal(err)
	}
	maintain(t, k)
	refused(t, k, "a token of a changed key", raw)
}

// TestRetiredKey checks that an operator's rotation ends the old key.
func TestRetiredKey(t *testing.T) {
	t.Parallel()
	d, c := dbtest.New(t), newClock()
	k, other := withClock(t, d, c.now), withClock(t, d, c.now)
	maintain(t, k)
	maintain(t, other)
	old := k.set.Load().list[0]
	must(t, k.RotateNow(t.Context()))
	maintain(t, other)
	c.advance(4*time.Minute - time.Second) // the other replica would stop signing by now even without the new key
	stolen := sign(t, members{"alg": "EdDSA", "kid": old.id, "typ": "JWT"}, payloadOf(t, issue(t, k, example())), by(old.private))
	if _, err := other.Verify(t.Context(), stolen); err != nil {
		t.Fatalf("a token of the old key, before it ends: %v", err)
	}
	if s, _ := other.usable(); s.id == old.id {
		t.Error("the old key still signs")
	}
	c.advance(8*time.Minute + time.Second)
	stolen = sign(t, members{"alg": "EdDSA", "kid": old.id, "typ": "JWT"}, payloadOf(t, issue(t, k, example())), by(old.private))
	refused(t, other, "a token of the old key", stolen)
	maintain(t, k)
	if n := countKeys(t, d); n != 1 {
		t.Errorf("%d keys", n)
	}
}

// TestUnknownKeysShareReads checks that a token of a key that this replica hasn't seen is
// accepted while very many forged ids come, and that these cause few reads.
func TestUnknownKeysShareReads(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	k, other := newKeys(t, d, nil), newKeys(t, d, nil)
	maintain(t, k)
	forged := func() string {
		parts := strings.SplitN(issue(t, k, example()), ".", 2)
		return segment(t, members{"alg": "EdDSA", "kid": rand.Text(), "typ": "JWT"}) + "." + parts[1]
	}
	var tokens []string
	for range 100 {
		tokens = append(tokens, forged())
	}
	ctx, queries := db.WithCounter(t.Context())
	start := time.Now()
	var wg sync.WaitGroup
	attack := func() {
		for _, raw := range tokens {
			wg.Go(func() {
				if _, err := k.Verify(ctx, raw); !errors.Is(err, ErrInvalid) {
					t.Errorf("a forged token: %v", err)
				}
			})
		}
	}
	attack()
	// Another replica makes a key and signs at once. This one doesn't read between the two: it
	// would find no key, and make one too.
	if err := k.lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Pool.Exec(t.Context(), "DELETE FROM tokenkeys"); err != nil {
		t.Fatal(err)
	}
	raw := issue(t, other, example())
	k.unlock()
	attack()
	if _, err := k.Verify(ctx, raw); err != nil {
		t.Errorf("a token of an unseen key: %v", err)
	}
	wg.Wait()
	if n, most := queries.Count(), int64(2+time.Since(start)/time.Second); n > most {
		t.Errorf("%d queries, want at most %d", n, most)
	}
	before := queries.Count()
	if _, err := k.Verify(ctx, raw); err != nil || queries.Count() != before {
		t.Errorf("a cached token: %v, %d queries", err, queries.Count()-before)
	}
	if _, err := k.Verify(ctx, issue(t, other, example())); err != nil || queries.Count() != before {
		t.Errorf("another token: %v, %d queries", err, queries.Count()-before)
	}
}

// TestWaitingIsBounded checks that requests beyond a number don't wait, and that a request
// whose client goes away stops waiting.
func TestWaitingIsBounded(t *testing.T) {
	t.Parallel()
	k := newKeys(t, dbtest.New(t), nil)
	raw := issue(t, k, example())
	parts := strings.SplitN(raw, ".", 2)
	forged := segment(t, members{"alg": "EdDSA", "kid": rand.Text(), "typ": "JWT"}) + "." + parts[1]
	must(t, k.lock(t.Context())) // as if the database didn't answer
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	for range maxWaiting {
		go func() { _, err := k.Verify(ctx, forged); done <- err }()
	}
	for k.waiting.Load() < maxWaiting {
		time.Sleep(time.Millisecond)
	}
	if _, err := k.Verify(t.Context(), forged); !errors.Is(err, ErrInvalid) {
		t.Errorf("one more: %v", err)
	}
	if _, err := k.Verify(t.Context(), raw); err != nil {
		t.Errorf("a valid token: %v", err)
	}
	cancel()
	for range maxWaiting {
		if err := <-done; !errors.Is(err, context.Canceled) || errors.Is(err, ErrInvalid) {
			t.Errorf("a request whose client is gone: %v", err)
		}
	}
	k.unlock()
	if n := k.waiting.Load(); n != 0 {
		t.Errorf("%d requests still wait", n)
	}
}

// TestDatabaseAway checks that known keys sign and verify without the database.
func TestDatabaseAway(t *testing.T) {
	t.Parallel()
	dsn, c := dbtest.DSN(t), newClock()
	proxy := dbtest.NewProxy(t, dsn)
	away, with := dbtest.Open(t, proxy.DSN), dbtest.Open(t, dsn)
	k, other, late := withClock(t, away, c.now), withClock(t, with, c.now), withClock(t, away, c.now)
	maintain(t, k)
	proxy.Refuse(true)
	proxy.Stop()
	away.Pool.Reset()
	_, _, err := late.Issue(t.Context(), example())
	if !db.Unavailable(err) {
		t.Errorf("issuing without any key: %v", err)
	}
	raw := issue(t, other, example())
	if _, err := late.Verify(t.Context(), raw); !db.Unavailable(err) || errors.Is(err, ErrInvalid) {
		t.Errorf("verifying without any key: %v", err)
	}
	if _, err := k.batch(t.Context()); !db.Unavailable(err) {
		t.Errorf("a batch: %v", err)
	}
	// The rotation that falls into the outage doesn't stop this replica, nor its tokens.
	for range 36 {
		if _, err := k.Verify(t.Context(), issue(t, k, example())); err != nil {
			t.Fatal(err)
		}
		maintain(t, other)
		if _, err := other.Verify(t.Context(), issue(t, k, example())); err != nil {
			t.Fatal(err)
		}
		c.advance(24 * time.Hour)
	}
	if n := countKeys(t, with); n != 2 {
		t.Errorf("%d keys", n)
	}
	c.advance(4 * 24 * time.Hour)
	if _, _, err := k.Issue(t.Context(), example()); !db.Unavailable(err) {
		t.Errorf("issuing with a key that has ended: %v", err)
	}
}

// TestLongerLifetime checks that a key which was made for short tokens isn't used for tokens
// that outlive it.
func TestLongerLifetime(t *testing.T) {
	t.Parallel()
	d, c := dbtest.New(t), newClock()
	maintain(t, withClock(t, d, c.now))
	k := newKeys(t, d, func(o *Options) { o.Now, o.TTL = c.now, 10*time.Hour })
	maintain(t, k)
	o := k.set.Load().list[0]
	c.advance(o.signsUntil.Sub(c.now()) - time.Second)
	// maintain isn't called, so this replica doesn't know the successor.
	raw, expires, err := k.Issue(t.Context(), example())
	must(t, err)
	if left := expires.Sub(c.now()); left < 5*time.Minute || left > 7*time.Minute {
		t.Errorf("the token lives for %v", left)
	}
	c.advance(expires.Sub(c.now()) + time.Minute - time.Second)
	if _, err := k.Verify(t.Context(), raw); err != nil {
		t.Errorf("at the end of its life: %v", err)
	}
}

// TestOddRow checks that a row which Purser hasn't written is reported and changes nothing.
func TestOddRow(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	k := newKeys(t, d, nil)
	raw := issue(t, k, example())
	_, err := d.Pool.Exec(t.Context(), "INSERT INTO tokenkeys SELECT 'odd', '', now(), signs_from, signs_until, valid_until FROM tokenkeys")
	must(t, err)
	if _, err := k.batch(t.Context()); err == nil || !strings.Contains(err.Error(), `"odd"`) {
		t.Errorf("got %v", err)
	}
	if _, err := k.Verify(t.Context(), raw); err != nil {
		t.Error(err)
	}
}
