package redispulls

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/pullstats/statsdb"
)

// counter is the content of a Redis key that counts the pulls of one manifest by one tag
// or, if tag is "", by digest.
type counter struct {
	key         string
	repository  int64
	tag         string
	digest      oci.Digest
	count, born int64
	seq         int64 // of the last pull
	last        time.Time
	// ended has the pulls by day, oldest day first, except those of the newest day: for each
	// day, how many pulls the counter had at the day's end.
	ended []statsdb.DayPulls
}

// byDay returns the counter's last n pulls by day, oldest day first. Pulls that came after
// those of a later day count for the later day.
func (c counter) byDay(n int64) (days []statsdb.DayPulls) {
	from := c.count - n
	for _, d := range append(c.ended, statsdb.DayPulls{Day: statsdb.DayOf(c.last), Pulls: c.count}) {
		if upTo := min(d.Pulls, c.count); upTo > from {
			days = append(days, statsdb.DayPulls{Day: d.Day, Pulls: upTo - from})
			from = upTo
		}
	}
	return days
}

// parseEnded reads the field `days` of a counter: for each day that has ended its number,
// counted from 1 January 1970, a colon, the pulls that the counter had at its end, and a space.
func parseEnded(text string) (list []statsdb.DayPulls) {
	for entry := range strings.FieldsSeq(text) {
		day, count, _ := strings.Cut(entry, ":")
		number, err := strconv.ParseInt(day, 10, 32)
		n, err2 := strconv.ParseInt(count, 10, 64)
		if err != nil || err2 != nil {
			return nil // then all pulls count for the newest day
		}
		list = append(list, statsdb.DayPulls{Day: time.Unix(number*24*60*60, 0).UTC(), Pulls: n})
	}
	return list
}

// counterID identifies a counter in the table redispullcounters. It is the first half of the
// SHA-256 of the counter's Redis key.
type counterID [16]byte

func idOf(key string) counterID {
	sum := sha256.Sum256([]byte(key))
	return counterID(sum[:16])
}

// counted is the row in redispullcounters that belongs to a counter: it says which pulls of
// the counter are in the statistics.
type counted struct{ born, count, seq int64 }

// uncounted returns how many pulls of the counter the statistics don't have; `has` is the
// counter's row in redispullcounters. `back` says that Redis was restored to an older
// state: the statistics have pulls that the counter in Redis doesn't have.
func (c counter) uncounted(has counted) (n int64, back bool) {
	switch {
	case c.born > has.born: // the key was deleted and made again
		return c.count, false
	case c.born == has.born && c.count >= has.count:
		return c.count - has.count, false
	}
	return 0, true
}

// counters reads the counters with the given keys from Redis. It leaves out keys that don't
// exist. `invalid` has an error for each key whose value can't be a counter; `failed` is
// the reason why other keys couldn't be read, nil if all were read.
func (r *Client) counters(ctx context.Context, keys []string) (list []counter, invalid map[string]error, failed error) {
	c, err := r.connect(ctx)
	if err != nil || len(keys) == 0 {
		return nil, nil, err
	}
	p := c.Pipeline()
	for _, key := range keys {
		p.HMGet(ctx, key, "pull_count", "born", "seq", "last_pull_timestamp", "repository_id", "tag_name", "manifest_digest", "pull_method", "days")
	}
	answers, err := p.Exec(ctx)
	invalid = map[string]error{}
	for i, a := range answers {
		fields := a.(*redis.SliceCmd).Val()
		if fields == nil {
			if cause := cmp.Or(a.Err(), err); unfit(cause) {
				invalid[keys[i]] = cause
			} else {
				failed = fmt.Errorf("reading the pulls in Redis: %w", cause)
			}
			continue
		}
		c, exists, err := parseCounter(keys[i], fields)
		switch {
		case err != nil:
			invalid[keys[i]] = err
		case exists:
			list = append(list, c)
		}
	}
	return list, invalid, failed
}

// parseCounter makes a counter of the field values that Client.counters has read from a key.
// `exists` is false if Redis doesn't have the key. It returns an error if the values, or the
// key's name, can't be those of a counter.
func parseCounter(key string, fields []any) (c counter, exists bool, err error) {
	text := make([]string, len(fields))
	for i, f := range fields {
		text[i], _ = f.(string)
		exists = exists || f != nil
	}
	if !exists {
		return c, false, nil
	}
	c = counter{key: key, tag: text[5], ended: parseEnded(text[8])}
	for i, to := range []*int64{&c.count, &c.born, &c.seq} {
		if *to, err = strconv.ParseInt(text[i], 10, 64); err != nil {
			return c, true, err
		}
	}
	if c.last, err = parseRedisTime(text[3]); err != nil {
		return c, true, err
	}
	if c.repository, err = strconv.ParseInt(text[4], 10, 64); err != nil {
		return c, true, err
	}
	if c.digest, err = oci.ParseDigest(text[6]); err != nil {
		return c, true, err
	}
	if text[7] == "tag" || c.tag != "" {
		err = oci.ValidateTag(c.tag)
	}
	if err == nil && key != counterKey(c.repository, c.tag, c.digest) {
		err = errors.New("its fields have another name")
	}
	return c, true, err
}

// lockCounters locks the counters in Redis against other flushes, by an advisory lock of
// PostgreSQL, until tx ends. If another transaction has the lock, lockCounters waits. Later
// statements of tx see what the earlier holders of the lock have committed.
func lockCounters(ctx context.Context, tx pgx.Tx) error {
	if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock(hashtextextended('counters of pulls in Redis', 0))"); err != nil {
		return fmt.Errorf("waiting for other flushes of pulls: %w", err)
	}
	return nil
}

// countedOf returns the rows in redispullcounters of the counters with the given ids. A
// counter of which no pull was flushed yet has no row. The section "Plans" of package db
// explains OFFSET 0.
func countedOf(ctx context.Context, q db.Querier, ids []counterID) (map[counterID]counted, error) {
	rows, err := q.Query(ctx, `
		SELECT c.* FROM unnest($1::uuid[]) AS want (id)
		CROSS JOIN LATERAL (SELECT id, born, counted, seq FROM redispullcounters WHERE id = want.id OFFSET 0) c`, ids)
	if err != nil {
		return nil, fmt.Errorf("reading what was counted: %w", err)
	}
	list := make(map[counterID]counted, len(ids))
	var id counterID
	var has counted
	if _, err := pgx.ForEachRow(rows, []any{&id, &has.born, &has.count, &has.seq}, func() error {
		list[id] = has
		return nil
	}); err != nil {
		return nil, fmt.Errorf("reading what was counted: %w", err)
	}
	return list, nil
}

func idsOf(list []counter) []counterID {
	ids := make([]counterID, len(list))
	for i, c := range list {
		ids[i] = idOf(c.key)
	}
	return ids
}

// saveCounted stores in redispullcounters that the statistics have all pulls that the
// counters in `list` had when they were read.
func saveCounted(ctx context.Context, tx pgx.Tx, list []counter) error {
	n := len(list)
	born, counts, seqs := make([]int64, n), make([]int64, n), make([]int64, n)
	for i, c := range list {
		born[i], counts[i], seqs[i] = c.born, c.count, c.seq
	}
	if _, err := tx.Exec(ctx, `
		INSERT INTO redispullcounters AS s (id, born, counted, seq)
		SELECT * FROM unnest(@ids::uuid[], @born::bigint[], @counted::bigint[], @seqs::bigint[])
		ON CONFLICT (id) DO UPDATE SET born = EXCLUDED.born, counted = EXCLUDED.counted, seq = GREATEST(s.seq, EXCLUDED.seq), updated_at = now()`,
		db.Args{"ids": idsOf(list), "born": born, "counted": counts, "seqs": seqs}); err != nil {
		return fmt.Errorf("storing what was counted: %w", err)
	}
	return nil
}
