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

// This file is for the upgrade from the version before, and goes with the next one. In that
// version, a flush claims the counts of keys for a batch: it moves a count aside under the
// batch's number. The batch's state in redisflushbatches is open at first, and then for
// good applied or abandoned. The transaction that adds what was claimed to the statistics
// turns it from open to applied; anybody turns it to abandoned after its lease. Then its
// claims are settled: dropped if it is applied, added back if it is abandoned.
//
// Flush workers of this version count keys of the older version in the same way, so that
// replicas of both may run at once. A batch with an unanswered claim is left open, so that
// it ends as abandoned.

const (
	// olderPrefix begins the keys of counters of the older version.
	olderPrefix = "pull_events:repo:"
	// olderEpochKey is the epoch's key in the older version. Its value is the number of a
	// batch.
	olderEpochKey = "pull_events:epoch"
	// olderUses begins the older version's keys of last-used times, one for each repository
	// and hour.
	olderUses = "pull_events:uses:"
	// olderUsesFor is the age up to which the times in these keys matter.
	olderUsesFor = 2 * time.Hour
	olderLease   = time.Minute
)

var (
	// claimScript claims a key's count for a batch, whose number is the argument. It
	// returns the number of the batch that has the claim and, if it is this batch, what was
	// claimed; false if there is nothing to claim. Repeated, it returns the same.
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

	// endClaimScript ends a batch's claim. Arguments: the batch's number, "applied" or
	// "abandoned", and the seconds that a key with nothing to count stays.
	endClaimScript = redis.NewScript(`
local h = redis.call('HMGET', KEYS[1], 'claim', 'claimed_count', 'pull_count')
if h[1] ~= ARGV[1] then return 0 end
if ARGV[2] ~= 'applied' then redis.call('HINCRBY', KEYS[1], 'pull_count', h[2]) end
redis.call('HSET', KEYS[1], 'claim', '', 'claimed_count', '', 'claimed_ts', '', 'done', ARGV[1])
if ARGV[2] == 'applied' and h[3] == '0' then redis.call('EXPIRE', KEYS[1], ARGV[3]) end
return 1`)
)

// errUnknownBatch says that the database doesn't know the batch that has a claim.
var errUnknownBatch = errors.New("a batch that the database doesn't know has claimed pulls in Redis, so that it can't be told whether they were counted: " +
	"the statistics' database isn't the one that Redis was flushed to, or was emptied. Delete the claimed keys to give their pulls up")

// olderPage counts a page of keys of the older version. left is why keys were left for the
// next run.
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
	if err == nil && len(others) > 0 { // claims of ended batches end here, and their keys are claimed again
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

// olderNumbers adds, as abandoned, the batches that Redis knows and a database that was
// restored doesn't, so that their claims end and later batches get greater numbers. The
// sequence is first: if only this succeeds, the next run still finds the batches missing.
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

// claim claims keys for the batch n. others are the keys that other batches have claimed.
// After an error it isn't known what was claimed, and the batch must not be applied.
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

// parseClaim reads the answer of claimScript to the batch that has the claim.
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

// applyOlder adds claims to the statistics, if their batch is still open.
func (w *FlushWorker) applyOlder(ctx context.Context, n int64, list []counter) (applied bool, err error) {
	var ids, names, seqs []int64
	for _, c := range list {
		ids, names, seqs = append(ids, c.repository), append(names, olderName(c.key)), append(seqs, c.seq)
	}
	err = w.opt.withAlive(ctx, sorted(ids), func(alive map[int64]bool, tx pgx.Tx) error {
		done, err := tx.Exec(ctx, "UPDATE redisflushbatches SET state = 'applied', keys = $2, key_names = $3, key_seqs = $4 WHERE id = $1 AND state = 'open'",
			n, len(list), names, seqs)
		if applied = err == nil && done.RowsAffected() == 1; !applied {
			return err
		}
		a := newAdder()
		for _, c := range list {
			if alive[c.repository] {
				a.add(c.repository, c.tag, c.digest, c.count, c.last)
			}
		}
		if err := a.counts().writeFlushed(ctx, tx); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `
			UPDATE redisprocessingstate SET keys_processed_count = keys_processed_count + $1,
				redis_epoch = GREATEST(redis_epoch, $2), updated_at = now()`, len(list), n)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("adding claims to the pull statistics: %w", err)
	}
	w.opt.Metrics.flushedKeys(keyFlushed, len(list))
	return applied, nil
}

// endOthers ends the claims of other batches that were applied or abandoned, and returns
// their keys. First it abandons batches whose lease has ended, in the order of their
// numbers, since several workers may do so at once.
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

// endClaims ends claims according to the states of their batches.
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

// olderKey returns the key that counts pulls in the older version; see counterKey.
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

// olderApplied gives up every open batch, since it may have claimed pulls that Redis then
// lost. It returns, for each key (by olderName), the highest sequence number among the
// batches that were made since a time and were applied.
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

// olderLock keeps processes of the older version from looking for lost pulls.
func olderLock(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock(hashtextextended('pulls that Redis has lost', 0))")
	if err != nil {
		return fmt.Errorf("counting what Redis has lost: %w", err)
	}
	return nil
}

// olderUses adds the last-used times of names that replicas of the older version have
// stored. It includes hours beyond now and olderUsesFor, since clocks may differ.
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
