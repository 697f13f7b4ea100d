package pullstats

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/purser-registry/purser/internal/oci"
)

// This file serves the upgrade from the previous version, and is to be deleted in the next
// version. In the previous version each flush has a batch: a row of redisflushbatches with a
// number and a state. The flush claims the count of a Redis key for its batch: in the key,
// it moves the count aside under the batch's number. The batch's state is open at first, and
// then applied or abandoned for good. The transaction that adds the claimed counts to the
// statistics also changes the state from open to applied. When the batch's lease has run
// out, any worker may change the state from open to abandoned. After that each claim is
// ended: the claimed count is dropped if the batch was applied, and added back to the key's
// count if it was abandoned.
//
// FlushWorkers of this version count the keys of the previous version in the same way, so
// replicas of both versions may run at once. If Redis doesn't answer when a worker claims a
// key's count for a batch, it isn't known whether the claim succeeded. So the worker never
// applies that batch: it leaves the batch open, and the batch is abandoned when its lease
// runs out.

const (
	// olderPrefix is the prefix of the previous version's counter keys in Redis.
	olderPrefix = "pull_events:repo:"
	// olderEpochKey is the Redis key that has the epoch in the previous version: the number
	// of the newest batch.
	olderEpochKey = "pull_events:epoch"
	// olderUses is the prefix of the Redis keys in which the previous version stores
	// last-used times, one key for each repository and hour.
	olderUses = "pull_events:uses:"
	// olderUsesFor is how far back the method Redis.olderUses reads these last-used times.
	olderUsesFor = 2 * time.Hour
	olderLease   = time.Minute
)

var (
	// claimScript claims the count of a key for a batch; the argument is the batch's
	// number. It returns the number of the batch that has claimed the key and, if that is
	// the calling batch, the claimed values. It returns false if the key has nothing to
	// claim. A repeated call returns the same.
	claimScript = redis.NewScript(`
local h = redis.call('HMGET', KEYS[1], 'claim', 'done', 'pull_count', 'last_pull_timestamp', 'claimed_count', 'claimed_ts',
  'repository_id', 'tag_name', 'manifest_digest', 'pull_method', 'seq', 'claimed_seq')
if h[1] and h[1] ~= '' then
  if h[1] ~= ARGV[1] then return {h[1]} end
  return {h[1], h[5], h[6], h[7], h[8], h[9], h[10], h[12] or '0'}
end
if (tonumber(h[2] or 0) or 0) >= tonumber(ARGV[1]) then return false end
if not ((tonumber(h[3] or 0) or 0) > 0) then return false end
local at = h[4] or '0'
redis.call('HSET', KEYS[1], 'claim', ARGV[1], 'claimed_count', h[3], 'claimed_ts', at, 'pull_count', '0', 'claimed_seq', h[11] or '0')
return {ARGV[1], h[3], at, h[7], h[8], h[9], h[10], h[11] or '0'}`)

	// endClaimScript ends a batch's claim of a key's count: it drops the claimed count if
	// the batch was applied, and adds it back to the key's count if the batch was abandoned.
	// Arguments: the batch's number; "applied" or "abandoned"; and the seconds after which a
	// key with nothing left to count expires.
	endClaimScript = redis.NewScript(`
local h = redis.call('HMGET', KEYS[1], 'claim', 'claimed_count', 'pull_count')
if h[1] ~= ARGV[1] then return 0 end
if ARGV[2] ~= 'applied' then redis.call('HINCRBY', KEYS[1], 'pull_count', h[2]) end
redis.call('HSET', KEYS[1], 'claim', '', 'claimed_count', '', 'claimed_ts', '', 'done', ARGV[1])
if ARGV[2] == 'applied' and h[3] == '0' then redis.call('EXPIRE', KEYS[1], ARGV[3]) end
return 1`)
)

// errUnknownBatch says that a key in Redis is claimed by a batch that the database doesn't
// know.
var errUnknownBatch = errors.New("a batch that the database doesn't know has claimed pulls in Redis, so that it can't be told whether they were counted: " +
	"the statistics' database isn't the one that Redis was flushed to, or was emptied. Delete the claimed keys to give their pulls up")

// olderPage adds the counts of the given keys of the previous version to the statistics.
// `left` is nil, or the reason why some keys were not read and are left for the next flush.
func (w *FlushWorker) olderPage(ctx context.Context, keys []string) (left, err error) {
	if err := w.olderNumbers(ctx); err != nil {
		return nil, err
	}
	var n, kept int64
	if err := w.opt.Stats.Pool.QueryRow(ctx, `
		INSERT INTO redisflushbatches (lease_until) VALUES (clock_timestamp() + $1::bigint * interval '1 microsecond')
		RETURNING id, (SELECT redis_epoch FROM redisprocessingstate)`, olderLease.Microseconds()).Scan(&n, &kept); err != nil {
		return nil, fmt.Errorf("beginning to flush pulls: %w", err)
	}
	if err := w.opt.Redis.raiseEpoch(ctx, olderEpochKey, n, kept); err != nil {
		return nil, err
	}
	list, others, left, err := w.claim(ctx, n, distinct(keys))
	if err == nil && len(others) > 0 { // end claims of ended batches, and claim their keys for n
		var free []string
		if free, err = w.endOthers(ctx, others); err == nil && len(free) > 0 {
			var more []counter
			more, _, left, err = w.claim(ctx, n, free)
			list = append(list, more...)
		}
	}
	if err != nil {
		return nil, err
	}
	w.crash("claimed")
	applied, err := w.applyOlder(ctx, n, list)
	w.crash("claims applied")
	if err != nil || !applied {
		return nil, cmp.Or(err, fmt.Errorf("flush %d took longer than its %s, and was given up by another worker", n, olderLease))
	}
	claims := map[string]int64{}
	for _, c := range list {
		claims[c.key] = n
	}
	return left, w.endClaims(ctx, claims, map[int64]string{n: "applied"})
}

// olderNumbers is needed after the statistics' database was restored to an older state. It
// inserts, as abandoned, the batches that Redis has seen and the database no longer has, so
// that their claims can be ended and new batches get greater numbers. It advances the id
// sequence first: if only this succeeds, the next run still finds the batches missing.
func (w *FlushWorker) olderNumbers(ctx context.Context) error {
	c, err := w.opt.Redis.connect(ctx)
	if err != nil {
		return err
	}
	known, err := c.Get(ctx, olderEpochKey).Int64()
	if err != nil && !errors.Is(err, redis.Nil) {
		return fmt.Errorf("reading how far pulls in Redis were flushed: %w", err)
	}
	if _, err = w.opt.Stats.Pool.Exec(ctx, `
		SELECT setval(seq, $1) FROM pg_get_serial_sequence('redisflushbatches', 'id') seq
		WHERE COALESCE(pg_sequence_last_value(seq::regclass), 0) < $1`, known); err == nil {
		_, err = w.opt.Stats.Pool.Exec(ctx, `
			INSERT INTO redisflushbatches (id, state, lease_until) OVERRIDING SYSTEM VALUE
			SELECT id, 'abandoned', now() FROM generate_series((SELECT COALESCE(max(id), 0) FROM redisflushbatches) + 1, $1::bigint) id
			ON CONFLICT DO NOTHING`, known)
	}
	if err != nil {
		return fmt.Errorf("numbering flushes of a database that was restored: %w", err)
	}
	return nil
}

// claim claims keys for batch n, that is, moves their counts aside in Redis, and returns
// the claimed counts as `list`. `others` maps each key that another batch has claimed to
// the number of that batch. `left` is the reason why some keys were not claimed, nil if
// none. After an error it isn't known which keys were claimed, and batch n must not be
// applied.
func (w *FlushWorker) claim(ctx context.Context, n int64, keys []string) (list []counter, others map[string]int64, left, err error) {
	calls := make([]*call, len(keys))
	for i, key := range keys {
		calls[i] = &call{script: claimScript, keys: []string{key}, args: []any{n}}
	}
	w.opt.Redis.run(ctx, calls)
	others = map[string]int64{}
	for _, call := range calls {
		key := call.keys[0]
		got, cause := call.outcome()
		fields, _ := call.cmd.Val().([]any)
		if got == answered && len(fields) == 1 {
			text, _ := fields[0].(string)
			others[key], cause = strconv.ParseInt(text, 10, 64)
		} else if got == answered && len(fields) > 1 {
			var c counter
			if c, cause = parseClaim(key, fields); cause == nil {
				list = append(list, c)
			}
		}
		switch {
		case got == unanswered:
			return nil, nil, nil, fmt.Errorf("claiming pulls in Redis: %w", cause)
		case got == refused && !unfit(cause):
			left = fmt.Errorf("claiming pulls in Redis: %w", cause)
		case cause != nil:
			delete(others, key)
			w.opt.Metrics.flushedKeys(keyInvalid, 1)
			w.opt.Logger.WarnContext(ctx, "a key in Redis has a name of a counter of pulls and is none", "key", key, "error", cause)
		}
	}
	return list, others, left, nil
}

// parseClaim makes a counter of the values that claimScript returns to the batch that has
// claimed the key.
func parseClaim(key string, fields []any) (c counter, err error) {
	text := make([]string, len(fields))
	for i, f := range fields {
		text[i], _ = f.(string)
	}
	c = counter{key: key, tag: text[4]}
	for i, to := range map[int]*int64{1: &c.count, 3: &c.repository, 7: &c.seq} {
		if *to, err = strconv.ParseInt(text[i], 10, 64); err != nil {
			return c, err
		}
	}
	if c.last, err = parseRedisTime(text[2]); err != nil {
		return c, err
	}
	c.digest, err = oci.ParseDigest(text[5])
	if err == nil && (text[6] == "tag" || c.tag != "") {
		err = oci.ValidateTag(c.tag)
	}
	return c, err
}

// applyOlder adds the claimed counts to the statistics and changes the state of batch n to
// applied. It does nothing and returns false if another worker has abandoned the batch.
func (w *FlushWorker) applyOlder(ctx context.Context, n int64, list []counter) (applied bool, err error) {
	var ids, names, seqs []int64
	for _, c := range list {
		ids, names, seqs = append(ids, c.repository), append(names, olderName(c.key)), append(seqs, c.seq)
	}
	err = w.opt.withAlive(ctx, sorted(ids), func(alive living, tx pgx.Tx) error {
		done, err := tx.Exec(ctx, "UPDATE redisflushbatches SET state = 'applied', keys = $2, key_names = $3, key_seqs = $4 WHERE id = $1 AND state = 'open'",
			n, len(list), names, seqs)
		if applied = err == nil && done.RowsAffected() == 1; !applied {
			return err
		}
		a := newAdder(alive)
		for _, c := range list {
			if alive.has(c.repository) {
				a.add(c.repository, c.tag, c.digest, c.count, dayOf(c.last), c.last)
			}
		}
		if err := a.counts().writeFlushed(ctx, tx); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `
			UPDATE redisprocessingstate SET keys_processed_count = keys_processed_count + $1,
				redis_epoch = GREATEST(redis_epoch, $2), updated_at = now(), protocol = 3`, len(list), n)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("adding claims to the pull statistics: %w", err)
	}
	w.opt.Metrics.flushedKeys(keyFlushed, len(list))
	return applied, nil
}

// endOthers ends claims of batches other than the caller's; `others` maps each key that such
// a batch has claimed to the batch's number. First it sets the state of the open batches
// whose lease has run out to abandoned. It locks their rows in the order of their numbers,
// so that two workers that do this at the same time don't deadlock. Then it ends the claims
// of the batches that are applied or abandoned, and returns the keys of these claims.
func (w *FlushWorker) endOthers(ctx context.Context, others map[string]int64) (free []string, err error) {
	ids := make([]int64, 0, len(others))
	for _, n := range others {
		ids = append(ids, n)
	}
	_, err = w.opt.Stats.Pool.Exec(ctx, `
		WITH late AS MATERIALIZED (
			SELECT id FROM redisflushbatches
			WHERE id = ANY ($1) AND state = 'open' AND lease_until < clock_timestamp()
			ORDER BY id FOR UPDATE)
		UPDATE redisflushbatches b SET state = 'abandoned' FROM late WHERE b.id = late.id AND b.state = 'open'`, ids)
	states := map[int64]string{}
	if err == nil {
		var rows pgx.Rows
		rows, err = w.opt.Stats.Pool.Query(ctx, "SELECT id, state FROM redisflushbatches WHERE id = ANY ($1)", ids)
		if err == nil {
			var id int64
			var state string
			_, err = pgx.ForEachRow(rows, []any{&id, &state}, func() error { states[id] = state; return nil })
		}
	}
	if err != nil {
		return nil, fmt.Errorf("reading the states of flushes: %w", err)
	}
	ended := map[string]int64{}
	for key, n := range others {
		switch states[n] {
		case "applied", "abandoned":
			ended[key] = n
			free = append(free, key)
		case "":
			return nil, fmt.Errorf("key %s, flush %d: %w", key, n, errUnknownBatch)
		}
	}
	slices.Sort(free)
	return free, w.endClaims(ctx, ended, states)
}

// endClaims ends claims in Redis. `claims` maps each key to the batch that has claimed it,
// and `states` maps each of these batches to "applied" or "abandoned".
func (w *FlushWorker) endClaims(ctx context.Context, claims map[string]int64, states map[int64]string) error {
	calls := make([]*call, 0, len(claims))
	for key, n := range claims {
		calls = append(calls, &call{script: endClaimScript, keys: []string{key}, args: []any{n, states[n], int(settledFor.Seconds())}})
	}
	w.opt.Redis.run(ctx, calls)
	for _, c := range calls {
		if got, err := c.outcome(); got != answered { // the next run ends it
			return fmt.Errorf("settling pulls in Redis: %w", err)
		}
	}
	return nil
}

// olderKey returns the previous version's Redis key for the pulls of a manifest: by the
// given tag or, if tag is "", by digest. See counterKey.
func olderKey(repository int64, tag string, d oci.Digest) string {
	if tag == "" {
		return fmt.Sprintf("%s%d:digest:%s", olderPrefix, repository, d)
	}
	return fmt.Sprintf("%s%d:tag:%s:%s", olderPrefix, repository, tag, d)
}

func olderName(key string) int64 {
	sum := sha256.Sum256([]byte(key))
	return int64(binary.BigEndian.Uint64(sum[:8]))
}

// olderApplied abandons every open batch, since it may have claimed pulls that Redis then
// lost. Of the applied batches that were made at or after the time `since`, it returns the
// highest sequence number for each key, as a map from olderName(key) to this number.
func (w *FlushWorker) olderApplied(ctx context.Context, since time.Time) (map[int64]int64, error) {
	if _, err := w.opt.Stats.Pool.Exec(ctx, `
		WITH open AS MATERIALIZED (
			SELECT id FROM redisflushbatches WHERE state = 'open' ORDER BY id FOR UPDATE)
		UPDATE redisflushbatches b SET state = 'abandoned' FROM open WHERE b.id = open.id AND b.state = 'open'`); err != nil {
		return nil, fmt.Errorf("giving up flushes: %w", err)
	}
	rows, err := w.opt.Stats.Pool.Query(ctx, `
		SELECT k.name, k.seq FROM redisflushbatches, unnest(key_names, key_seqs) AS k (name, seq)
		WHERE state = 'applied' AND created_at >= $1`, since)
	list := map[int64]int64{}
	if err == nil {
		var name, seq int64
		_, err = pgx.ForEachRow(rows, []any{&name, &seq}, func() error { list[name] = max(list[name], seq); return nil })
	}
	if err != nil {
		return nil, fmt.Errorf("reading what was flushed: %w", err)
	}
	return list, nil
}

// olderLock takes the lock under which processes of the previous version search for pulls
// that Redis has lost, so that none of them searches while tx runs.
func olderLock(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock(hashtextextended('pulls that Redis has lost', 0))")
	if err != nil {
		return fmt.Errorf("counting what Redis has lost: %w", err)
	}
	return nil
}

// olderUses reads the last-used times that replicas of the previous version have stored in
// Redis for the tags or manifests in `names`. It stores each time in the map `into`, unless
// the map has a later one. It reads an hour more than olderUsesFor and an hour into the
// future, since the clocks of replicas may differ.
func (r *Redis) olderUses(ctx context.Context, c redis.UniversalClient, repository int64, names []string, into map[string]time.Time) error {
	now := time.Now()
	for part := range slices.Chunk(names, 1000) {
		fields := make([]string, len(part))
		for i, name := range part {
			fields[i] = fmt.Sprintf("%011x", uint64(olderName(name))>>20)
		}
		p := c.Pipeline()
		var hours []*redis.SliceCmd
		for at := now.Add(-olderUsesFor - time.Hour); at.Before(now.Add(time.Hour + time.Second)); at = at.Add(time.Hour) {
			hours = append(hours, p.HMGet(ctx, fmt.Sprintf("%s%d:%d", olderUses, repository, at.Unix()/3600), fields...))
		}
		if _, err := p.Exec(ctx); err != nil {
			return fmt.Errorf("reading in Redis what was used: %w", err)
		}
		for _, hour := range hours {
			for i, v := range hour.Val() {
				text, _ := v.(string)
				if at, err := strconv.ParseInt(text, 10, 64); err == nil {
					later(into, part[i], time.Unix(at, 0))
				}
			}
		}
	}
	return nil
}
