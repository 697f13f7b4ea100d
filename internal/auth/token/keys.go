package token

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/worker"
)

const (
	// validMargin is how much longer than necessary a key verifies tokens.
	validMargin = time.Minute
	// reloadInterval is the minimum time between two reads of the table of keys on behalf of
	// clients.
	reloadInterval = time.Second
	// reloadTimeout limits such a read.
	reloadTimeout = 5 * time.Second
	// maxWaiting is how many requests wait at most for a read of the table. It bounds what
	// forged key ids cost.
	maxWaiting = 256
)

// key is a row of the table tokenkeys.
type key struct {
	id         string
	private    ed25519.PrivateKey
	public     ed25519.PublicKey
	header     string // the first part of each of its tokens, and the dot
	signsFrom  time.Time
	signsUntil time.Time
	validUntil time.Time
}

// keySet is all keys that this replica knows. It is never changed, only replaced.
type keySet struct {
	list []*key // by signsFrom
	byID map[string]*key
	// generation is greater than that of the set before if that had a key which this set
	// doesn't have, or has for a shorter time.
	generation uint64
}

// signer returns the key that signs at the time `now`: of the keys that may, the newest. If
// none may, this replica's clock is behind that of the creator of the first key, or the
// database has been away for long. Then signer returns the next key that may, or the one that
// might last. It returns nil if there are no keys.
func (s *keySet) signer(now time.Time) *key {
	var next *key
	for _, k := range slices.Backward(s.list) {
		switch {
		case k.signsFrom.After(now):
			next = k
		case now.Before(k.signsUntil):
			return k
		}
	}
	if next == nil && len(s.list) > 0 {
		next = s.list[len(s.list)-1]
	}
	return next
}

// isKeyID says whether s has the form of a key's id, which is that of rand.Text.
func isKeyID(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < 'A' || c > 'Z') && (c < '2' || c > '7') {
			return false
		}
	}
	return len(s) == 26
}

// Run reads the table of keys every Options.Refresh, creates a key when one is due, and deletes
// keys that can't verify any token any more. It returns when ctx ends. While it doesn't run,
// tokens are issued and verified with the keys that were known before.
func (k *Keys) Run(ctx context.Context) error { return k.loop.Run(ctx) }

func (k *Keys) batch(ctx context.Context) (bool, error) {
	if err := k.lock(ctx); err != nil {
		return false, err
	}
	defer k.unlock()
	return false, k.maintain(ctx)
}

// RotateNow creates a key that replaces all others, for an operator who wants them replaced
// before their time. The new key signs after Options.Lead. The others stop signing a further
// Lead later, and verify until their last tokens have expired: with the default options they
// are gone after 12 min. A replica that can't reach the database in this time goes on signing
// with an old key, and the others refuse its tokens in the end.
func (k *Keys) RotateNow(ctx context.Context) error {
	if err := k.lock(ctx); err != nil {
		return err
	}
	defer k.unlock()
	_, err := k.create(ctx, true)
	return err
}

// lock waits until this goroutine may read or change the table of keys.
func (k *Keys) lock(ctx context.Context) error {
	select {
	case k.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (k *Keys) unlock() { <-k.turn }

// signingKey returns the key that signs now, and when a token that it signs now expires. It
// asks the database only if no known key can sign, and not more than once per second.
func (k *Keys) signingKey(ctx context.Context) (*key, time.Time, error) {
	if s, expires := k.usable(); s != nil {
		return s, expires, nil
	}
	if err := k.lock(ctx); err != nil {
		return nil, time.Time{}, err
	}
	defer k.unlock()
	if s, expires := k.usable(); s != nil {
		return s, expires, nil
	}
	if k.attempt.IsZero() || time.Since(k.attempt) >= k.interval {
		k.tryMaintain(ctx)
	}
	if s, expires := k.usable(); s != nil {
		return s, expires, nil
	}
	if k.attemptErr != nil {
		return nil, time.Time{}, k.attemptErr
	}
	return nil, time.Time{}, ErrNoKey
}

// usable returns the key that signs now, or nil. A token doesn't outlive its key, even if the
// key was created when tokens lived for a shorter time.
func (k *Keys) usable() (*key, time.Time) {
	now := k.opt.Now()
	s := k.set.Load().signer(now)
	if s == nil {
		return nil, time.Time{}
	}
	expires := now.Add(k.opt.TTL)
	if last := s.validUntil.Add(-2 * k.opt.Skew); last.Before(expires) {
		expires = last
	}
	if expires.Sub(now) < MinTTL {
		return nil, time.Time{}
	}
	return s, expires
}

// find returns the key with the id and the generation of the set that has it. It reads the
// table of keys if the key isn't known. It returns errUnknownKey if there is no such key, or
// if it isn't valid any more.
func (k *Keys) find(ctx context.Context, id string) (*key, uint64, error) {
	set := k.set.Load()
	if set.byID[id] == nil {
		if err := k.awaitRead(ctx, id); err != nil {
			return nil, 0, err
		}
		set = k.set.Load()
	}
	if found := set.byID[id]; found != nil && k.opt.Now().Before(found.validUntil) {
		return found, set.generation, nil
	}
	return nil, 0, errUnknownKey
}

// awaitRead returns when the table of keys has been read after the call, or the key is known.
// Many requests share one read, and there is at most one per second; so a request may wait for
// a second. It doesn't wait if very many do already.
func (k *Keys) awaitRead(ctx context.Context, id string) error {
	asked := time.Now()
	defer k.waiting.Add(-1)
	if k.waiting.Add(1) > maxWaiting {
		return errUnknownKey
	}
	if err := k.lock(ctx); err != nil {
		return err
	}
	defer k.unlock()
	if k.set.Load().byID[id] != nil {
		return nil
	}
	if !k.attempt.After(asked) {
		if !k.attempt.IsZero() {
			if err := worker.Sleep(ctx, k.interval-time.Since(k.attempt)); err != nil {
				return err
			}
		}
		k.tryMaintain(ctx)
	}
	if k.set.Load().byID[id] != nil {
		return nil
	}
	return k.attemptErr
}

// tryMaintain is maintain on behalf of requests. It goes on when the request ends, since other
// requests wait for the result.
func (k *Keys) tryMaintain(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reloadTimeout)
	defer cancel()
	k.maintain(ctx) //nolint:errcheck // it is in attemptErr
}

// maintain reads the table of keys, creates a key if one is due, and deletes those that are no
// longer valid. The caller has the lock.
func (k *Keys) maintain(ctx context.Context) (err error) {
	k.attempt = time.Now()
	defer func() { k.attemptErr = err }()
	list, err := k.read(ctx, k.opt.DB.Pool)
	if err != nil {
		return err
	}
	k.replace(list)
	now := k.opt.Now()
	if k.isDue(list, now) {
		if list, err = k.create(ctx, false); err != nil {
			return err
		}
	}
	if slices.ContainsFunc(list, func(o *key) bool { return !now.Before(o.validUntil) }) {
		// A replica whose clock is far ahead must not delete keys that the others use.
		if _, err := k.opt.DB.Pool.Exec(ctx, "DELETE FROM tokenkeys WHERE valid_until <= LEAST($1, now())", now); err != nil {
			return fmt.Errorf("deleting keys of registry tokens: %w", err)
		}
	}
	return nil
}

// isDue says whether a key has to be created: the newest is old enough, or no key may sign.
func (k *Keys) isDue(list []*key, now time.Time) bool {
	return len(list) == 0 || !now.Before(list[len(list)-1].signsFrom.Add(k.opt.Rotate)) || !canSign(list, now)
}

// canSign says whether a key signs now or later.
func canSign(list []*key, now time.Time) bool {
	return slices.ContainsFunc(list, func(o *key) bool { return now.Before(o.signsUntil) })
}

// create creates a key if one is due, or in any case if `replace` is set; then the others stop
// signing soon. It returns all keys. The caller has the lock.
func (k *Keys) create(ctx context.Context, replace bool) ([]*key, error) {
	seed := make([]byte, ed25519.SeedSize)
	rand.Read(seed) //nolint:errcheck // it never fails
	id := rand.Text()
	var list []*key
	var from time.Time
	err := k.opt.DB.Tx(ctx, func(tx pgx.Tx) error {
		from = time.Time{}
		// Replicas that find a key due at the same time create one after the other, so the
		// second finds the key of the first.
		_, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock(hashtextextended('keys of registry tokens', 0))")
		if err != nil {
			return err
		}
		if list, err = k.read(ctx, tx); err != nil {
			return err
		}
		now := k.opt.Now()
		if !replace && !k.isDue(list, now) {
			return nil
		}
		from = now
		if canSign(list, now) {
			from = now.Add(k.opt.Lead)
		}
		if err := k.insert(ctx, tx, id, seed, from, replace); err != nil {
			return err
		}
		list, err = k.read(ctx, tx)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("creating a key of registry tokens: %w", err)
	}
	if !from.IsZero() {
		k.log.InfoContext(ctx, "created a key that signs registry tokens", "key", id, "signs_from", from, "replaces_others", replace)
	}
	k.replace(list)
	return list, nil
}

// insert inserts a key that signs from the time `from`. It signs for longer than it takes until
// its successor signs, so that a replica without the database can go on for a while. If
// `replace` is set, insert shortens the time of the other keys.
func (k *Keys) insert(ctx context.Context, tx pgx.Tx, id string, seed []byte, from time.Time, replace bool) error {
	until := from.Add(k.opt.Rotate + max(k.opt.Rotate/4, 2*k.opt.Lead))
	lasts := k.opt.TTL + 2*k.opt.Skew + validMargin
	if replace {
		_, err := tx.Exec(ctx, `
			UPDATE tokenkeys SET signs_until = LEAST(signs_until, $1), valid_until = LEAST(valid_until, $2)`,
			from.Add(k.opt.Lead), from.Add(k.opt.Lead+lasts))
		if err != nil {
			return err
		}
	}
	_, err := tx.Exec(ctx, `
		INSERT INTO tokenkeys (id, private_key, signs_from, signs_until, valid_until) VALUES ($1, $2, $3, $4, $5)`,
		id, seed, from, until, until.Add(lasts))
	return err
}

// read returns the keys in the table, by signsFrom.
func (k *Keys) read(ctx context.Context, q db.Querier) ([]*key, error) {
	rows, err := q.Query(ctx, "SELECT id, private_key, signs_from, signs_until, valid_until FROM tokenkeys ORDER BY signs_from, id")
	if err != nil {
		return nil, fmt.Errorf("reading the keys of registry tokens: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*key, error) {
		var o key
		var seed []byte
		if err := row.Scan(&o.id, &seed, &o.signsFrom, &o.signsUntil, &o.validUntil); err != nil {
			return nil, err
		}
		if len(seed) != ed25519.SeedSize || !isKeyID(o.id) {
			return nil, fmt.Errorf("the key %q is not one that Purser has written; delete it", o.id)
		}
		// An operator who ends a key by valid_until alone ends its signing too.
		if last := o.validUntil.Add(-2*k.opt.Skew - MinTTL); last.Before(o.signsUntil) {
			o.signsUntil = last
		}
		o.private = ed25519.NewKeyFromSeed(seed)
		o.public = o.private.Public().(ed25519.PublicKey)
		o.header = base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"EdDSA","kid":"`+o.id+`","typ":"JWT"}`)) + "."
		return &o, nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading the keys of registry tokens: %w", err)
	}
	return list, nil
}

// replace makes the keys in the list the known keys.
func (k *Keys) replace(list []*key) {
	old := k.set.Load()
	set := &keySet{list: list, byID: make(map[string]*key, len(list)), generation: old.generation}
	for _, o := range list {
		set.byID[o.id] = o
	}
	for _, before := range old.list {
		now := set.byID[before.id]
		if now == nil || now.validUntil.Before(before.validUntil) || !now.public.Equal(before.public) {
			set.generation = old.generation + 1
		}
	}
	k.set.Store(set)
}
