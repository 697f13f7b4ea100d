package session

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/db/dbtest"
)

// create starts a session.
func create(t testing.TB, s *Sessions, account int64) (secret string) {
	t.Helper()
	secret, err := s.Create(t.Context(), account, "192.0.2.1", "browser/1")
	must(t, err)
	return secret
}

// wantFound fails the test unless a session is found, or isn't.
func wantFound(t testing.TB, s *Sessions, secret string, want bool, why string) Session {
	t.Helper()
	found, ok, err := s.Find(t.Context(), secret)
	if err != nil || ok != want {
		t.Errorf("%s: found: %t, %v; want %t", why, ok, err, want)
	}
	return found
}

func TestCreateAndFind(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	s, _ := open(t, d)
	alice := account(t, d, "alice")
	secret, err := s.Create(t.Context(), alice, "192.0.2.1", "browser\x00/1\xff"+strings.Repeat("é", 200))
	must(t, err)
	other := create(t, s, alice)
	if secret == other || len(secret) != 43 {
		t.Errorf("secrets are %q and %q", secret, other)
	}
	got := wantFound(t, s, secret, true, "new")
	if got.Account != alice || got.Address != "192.0.2.1" || got.ID == uuid.Nil || got.Expires.Sub(got.Created).Round(time.Millisecond) != 7*24*time.Hour {
		t.Errorf("the session is %+v", got)
	}
	if !strings.HasPrefix(got.UserAgent, "browser/1éé") || len(got.UserAgent) > maxText || !utf8.ValidString(got.UserAgent) {
		t.Errorf("the User-Agent is %q", got.UserAgent)
	}
	sum := sha256.Sum256([]byte(secret))
	if n := count(t, d, "SELECT count(*) FROM sessions WHERE secret_hash = $1 AND sessions::text NOT LIKE '%' || $2 || '%'", sum[:], secret); n != 1 {
		t.Error("the table doesn't have the secret's hash alone")
	}
	for _, wrong := range []string{"", secret[1:], secret + "A", strings.Repeat("A", 43), strings.ToLower(secret), got.ID.String()} {
		wantFound(t, s, wrong, false, "secret "+wrong)
	}
	if _, err := s.Create(t.Context(), alice+1000, "", ""); !errors.Is(err, ErrNoAccount) {
		t.Errorf("a session of no account: %v", err)
	}
	exec(t, d, "UPDATE accounts SET disabled_at = now() WHERE id = $1", alice)
	if _, err := s.Create(t.Context(), alice, "", ""); !errors.Is(err, ErrNoAccount) {
		t.Errorf("a session of a disabled account: %v", err)
	}
}

// TestEnds lists the ways in which a session ends.
func TestEnds(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	s, clock := open(t, d, func(o *Options) { o.Idle, o.MaxAge = time.Hour, 24*time.Hour })
	for i, tt := range []struct {
		sql   string
		ended bool
	}{
		{"UPDATE sessions SET last_used_at = now() - interval '59 min' WHERE account_id = $1", false},
		{"UPDATE sessions SET last_used_at = now() - interval '61 min' WHERE account_id = $1", true},
		{"UPDATE sessions SET expires_at = now() WHERE account_id = $1", true},
		{"UPDATE sessions SET created_at = now() - interval '25 h' WHERE account_id = $1", true}, // MaxAge was shortened since
		{"UPDATE accounts SET disabled_at = now() WHERE id = $1", true},
		{"DELETE FROM accounts WHERE id = $1", true},
	} {
		id := account(t, d, fmt.Sprint("user", i))
		secret := create(t, s, id)
		wantFound(t, s, secret, true, "before "+tt.sql)
		exec(t, d, tt.sql, id)
		clock.advance(CacheTime)
		wantFound(t, s, secret, !tt.ended, tt.sql)
		wantListed := 1
		if tt.ended && !strings.HasPrefix(tt.sql, "UPDATE accounts") {
			wantListed = 0
		}
		if list, _, err := s.List(t.Context(), id, nil, 100); err != nil || len(list) != wantListed {
			t.Errorf("%s: list %v, %v", tt.sql, list, err)
		}
	}
}

// TestUseIsRecorded checks that the use of a session is recorded only every few minutes, and
// that a request waits for nobody who is recording it.
func TestUseIsRecorded(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	s, clock := open(t, d)
	secret := create(t, s, account(t, d, "alice"))
	used := func(ago string) {
		t.Helper()
		exec(t, d, "UPDATE sessions SET last_used_at = now() - $1::interval", ago)
		clock.advance(CacheTime)
		wantFound(t, s, secret, true, "used "+ago+" ago")
	}
	recent := "SELECT count(*) FROM sessions WHERE last_used_at > now() - interval '1 min'"
	if used("4 min"); count(t, d, recent) != 0 {
		t.Error("the use was recorded again after 4 min")
	}
	if used("6 min"); count(t, d, recent) != 1 {
		t.Error("the use wasn't recorded after 6 min")
	}
	exec(t, d, "UPDATE sessions SET last_used_at = now() - interval '6 min'")
	clock.advance(CacheTime)
	tx, err := d.Pool.Begin(t.Context())
	must(t, err)
	defer tx.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // it changes nothing
	_, err = tx.Exec(t.Context(), "UPDATE sessions SET last_used_at = now()")
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // the server ends tx only later
	defer cancel()
	if _, ok, err := s.Find(ctx, secret); !ok || err != nil {
		t.Errorf("while another request records the use: %t, %v", ok, err)
	}

	// A session that is used more often than Idle never ends by that.
	quick, _ := open(t, d, func(o *Options) { o.Idle = 2 * time.Minute })
	if got := quick.touchInterval(); got != 30*time.Second {
		t.Errorf("with 2 min of idleness the use is recorded every %s", got)
	}
}

func TestRoundTrips(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	s, clock := open(t, d)
	secret := create(t, s, account(t, d, "alice"))
	trips := func(secret string, want int64, why string) {
		t.Helper()
		ctx, counter := db.WithCounter(t.Context())
		if _, _, err := s.Find(ctx, secret); err != nil || counter.Count() != want {
			t.Errorf("%s: %d round trips, %v; want %d", why, counter.Count(), err, want)
		}
	}
	trips(secret, 1, "the first time")
	clock.advance(CacheTime - 1)
	trips(secret, 0, "just before the end of the cache's time")
	clock.advance(1)
	trips(secret, 1, "after the cache's time")
	trips("short", 0, "a malformed secret")
	exec(t, d, "UPDATE sessions SET last_used_at = now() - interval '1 h'")
	clock.advance(CacheTime)
	trips(secret, 1, "with its use recorded")
}

func TestRevoke(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	s, _ := open(t, d)
	other, clock := open(t, dbtest.Open(t, d.Pool.Config().ConnString())) // another process
	alice, bob := account(t, d, "alice"), account(t, d, "bob")
	secrets := []string{create(t, s, alice), create(t, s, alice), create(t, s, alice)}
	of := create(t, s, bob)
	var ids []uuid.UUID
	for _, secret := range secrets {
		wantFound(t, other, secret, true, "in the other process")
		ids = append(ids, wantFound(t, s, secret, true, "new").ID)
	}
	wantFound(t, s, of, true, "bob's")
	list, more, err := s.List(t.Context(), alice, nil, 3)
	if err != nil || more || len(list) != 3 || list[0].ID != ids[2] || list[2].ID != ids[0] {
		t.Errorf("alice's sessions are %+v, %v; want %v, newest first", list, err, ids)
	}
	if revoked, err := s.Revoke(t.Context(), bob, ids[0]); revoked || err != nil {
		t.Errorf("bob has revoked alice's session: %t, %v", revoked, err)
	}
	wantFound(t, s, secrets[0], true, "after bob's attempt")
	for _, want := range []bool{true, false} {
		if revoked, err := s.Revoke(t.Context(), alice, ids[0]); revoked != want || err != nil {
			t.Errorf("revoked: %t, %v; want %t", revoked, err, want)
		}
	}
	wantFound(t, s, secrets[0], false, "at once in the process that has revoked it")
	clock.advance(CacheTime)
	wantFound(t, other, secrets[0], false, "elsewhere after the cache's time")

	if n, err := s.RevokeAll(t.Context(), alice, ids[1]); n != 1 || err != nil {
		t.Errorf("%d revoked, %v; want 1", n, err)
	}
	wantFound(t, s, secrets[1], true, "the kept session")
	wantFound(t, s, secrets[2], false, "not kept")
	if n, err := s.RevokeAll(t.Context(), alice); n != 1 || err != nil {
		t.Errorf("%d revoked, %v; want 1", n, err)
	}
	wantFound(t, s, secrets[1], false, "no longer kept")
	wantFound(t, s, of, true, "bob's after alice's were revoked")
}

// TestFindThatIsOvertaken lets a session be revoked after a request has read it from the
// database, and before the request puts it into the cache.
func TestFindThatIsOvertaken(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	s, clock := open(t, d)
	alice := account(t, d, "alice")
	secret := create(t, s, alice)
	h := hash(sha256.Sum256([]byte(secret)))
	_, _, keep := s.cache.get(h)
	other, _ := open(t, d)
	read := wantFound(t, other, secret, true, "what the slow request has read")
	if revoked, err := s.Revoke(t.Context(), alice, read.ID); !revoked || err != nil {
		t.Fatal(revoked, err)
	}
	keep(read)
	wantFound(t, s, secret, false, "after the slow request in the process that has revoked it")

	// In another process it stays for the cache's time, counted from the request's beginning.
	secret = create(t, s, alice)
	h = hash(sha256.Sum256([]byte(secret)))
	other.cache.now = clock.Now
	_, _, keep = other.cache.get(h)
	clock.advance(CacheTime - 1) // the query takes so long
	read = wantFound(t, s, secret, true, "new")
	_, err := s.Revoke(t.Context(), alice, read.ID)
	must(t, err)
	keep(read)
	wantFound(t, other, secret, true, "within the cache's time")
	clock.advance(1)
	wantFound(t, other, secret, false, "after the cache's time")
}

func TestMostSessions(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	s, _ := open(t, d)
	alice, bob := account(t, d, "alice"), account(t, d, "bob")
	bobs := create(t, s, bob)
	var secrets []string
	for range maxSessions + 2 {
		secrets = append(secrets, create(t, s, alice))
	}
	for i, secret := range secrets {
		wantFound(t, s, secret, i >= 2, fmt.Sprint("session ", i))
	}
	wantFound(t, s, bobs, true, "of another account")

	// A log-in waits for another one of the account that hasn't committed yet, and counts it.
	exec(t, d, "DELETE FROM sessions WHERE account_id = $1 AND id = (SELECT min(id::text)::uuid FROM sessions WHERE account_id = $1)", alice)
	tx, err := d.Pool.Begin(t.Context())
	must(t, err)
	_, err = tx.Exec(t.Context(), "SELECT FROM accounts WHERE id = $1 FOR NO KEY UPDATE", alice)
	must(t, err)
	_, err = tx.Exec(t.Context(), `
		INSERT INTO sessions (secret_hash, id, account_id, expires_at) VALUES ('x', gen_random_uuid(), $1, now() + interval '1 h')`, alice)
	must(t, err)
	created := make(chan error, 1)
	go func() {
		_, err := s.Create(t.Context(), alice, "", "")
		created <- err
	}()
	for len(created) == 0 && count(t, d, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") == 0 {
		time.Sleep(2 * time.Millisecond)
	}
	must(t, tx.Commit(t.Context()))
	must(t, <-created)
	if n := count(t, d, "SELECT count(*) FROM sessions WHERE account_id = $1", alice); n != maxSessions {
		t.Errorf("after two log-ins at the same time alice has %d sessions, want %d", n, maxSessions)
	}

	// Many log-ins at the same time, in two processes, keep to the number too.
	other, _ := open(t, dbtest.Open(t, d.Pool.Config().ConnString()))
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for range 5 {
				if _, err := []*Sessions{s, other}[i%2].Create(t.Context(), alice, "", ""); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if n := count(t, d, "SELECT count(*) FROM sessions WHERE account_id = $1", alice); n != maxSessions {
		t.Errorf("alice has %d sessions, want %d", n, maxSessions)
	}
}

// TestStorm creates, finds and revokes sessions in two processes at the same time. No request
// that begins after a revocation in its process, or CacheTime after one elsewhere, is let in.
func TestStorm(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	a, clockA := open(t, d)
	b, clockB := open(t, dbtest.Open(t, d.Pool.Config().ConnString()))
	var all sync.WaitGroup
	for i := range 4 {
		id := account(t, d, fmt.Sprint("user", i))
		all.Go(func() {
			for range 15 {
				secret := create(t, a, id)
				found := wantFound(t, a, secret, true, "new")
				ctx, cancel := context.WithCancel(t.Context())
				var finders sync.WaitGroup
				for _, s := range []*Sessions{a, b, a, b} {
					finders.Go(func() {
						for ctx.Err() == nil {
							if got, ok, err := s.Find(t.Context(), secret); err != nil || ok && got.ID != found.ID {
								t.Errorf("found %+v, %v", got, err)
							}
							clockB.advance(time.Second)
						}
					})
				}
				if revoked, err := a.Revoke(t.Context(), id, found.ID); !revoked || err != nil {
					t.Errorf("revoked: %t, %v", revoked, err)
				}
				wantFound(t, a, secret, false, "revoked, with requests of before still running")
				cancel()
				finders.Wait()
				wantFound(t, a, secret, false, "revoked")
				clockB.advance(CacheTime)
				wantFound(t, b, secret, false, "revoked elsewhere")
			}
		})
	}
	all.Wait()
	clockA.advance(CacheTime)
	if n := count(t, d, "SELECT count(*) FROM sessions"); n != 0 {
		t.Errorf("%d sessions are left", n)
	}
}

func TestDeleteExpired(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	s, _ := open(t, d)
	alice := account(t, d, "alice")
	secret := create(t, s, alice)
	exec(t, d, `
		INSERT INTO sessions (secret_hash, id, account_id, expires_at)
		SELECT decode(md5(n::text), 'hex'), gen_random_uuid(), $1, now() - interval '1 s' FROM generate_series(1, $2::int) n`, alice, deleteRows+5)
	if more, err := s.deleteExpired(t.Context()); err != nil || !more || count(t, d, "SELECT count(*) FROM sessions") != 6 {
		t.Errorf("first batch: more: %t, %v", more, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	for deadline := time.Now().Add(time.Minute); count(t, d, "SELECT count(*) FROM sessions") != 1; {
		if time.Now().After(deadline) {
			t.Fatal("Run doesn't delete the expired sessions")
		}
		time.Sleep(2 * time.Millisecond)
	}
	cancel()
	must(t, <-ended)
	wantFound(t, s, secret, true, "not expired")
}

func TestCacheIsBounded(t *testing.T) {
	t.Parallel()
	now := &clock{now: time.Unix(1_000_000, 0)}
	c := newCache(CacheTime, now.Now)
	for i := range 3 * cacheSize {
		h := hash{byte(i), byte(i >> 8), byte(i >> 16)}
		_, _, keep := c.get(h)
		keep(Session{Account: int64(i)})
		if i%1000 == 0 {
			now.advance(time.Second)
		}
		if s, ok, _ := c.get(h); !ok || s.Account != int64(i) || len(c.sessions) > cacheSize {
			t.Fatalf("after %d sessions: %+v, %t, %d in the cache", i+1, s, ok, len(c.sessions))
		}
	}
}

func TestDatabaseIsAway(t *testing.T) {
	t.Parallel()
	d := dbtest.New(t)
	s, clock := open(t, d)
	secret := create(t, s, account(t, d, "alice"))
	found := wantFound(t, s, secret, true, "new")
	d.Pool.Close()
	wantFound(t, s, secret, true, "in the cache")
	if _, err := s.Revoke(t.Context(), found.Account, found.ID); err == nil {
		t.Error("a session was revoked without a database")
	}
	clock.advance(CacheTime)
	if _, ok, err := s.Find(t.Context(), secret); ok || !db.Unavailable(err) || strings.Contains(err.Error(), secret) {
		t.Errorf("without a database: %t, %v", ok, err)
	}
}
