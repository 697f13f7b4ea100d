package pullstats

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/purser-registry/purser/internal/oci"
)

// Keys of pulls, with the names of Quay's design.
const (
	pullPrefix = "pull_events:repo:"
	// epochKey has the newest batch that was begun. A Redis that remembers less than the
	// database has lost data, and a database that remembers less was restored.
	epochKey = "pull_events:epoch"
	// ownerKey says whose pulls they are.
	ownerKey = "pull_events:owner"
	// usesPrefix begins the keys of when names were last used.
	usesPrefix = "pull_events:uses:"
	// hintPrefix begins the keys of which tag a client has just asked for.
	hintPrefix = "pull_events:hint:"
)

// pullKey is the key that counts pulls of a manifest: by a tag, or by digest when tag
// is "".
func pullKey(repository int64, tag string, d oci.Digest) string {
	if tag == "" {
		return fmt.Sprintf("%s%d:digest:%s", pullPrefix, repository, d)
	}
	return fmt.Sprintf("%s%d:tag:%s:%s", pullPrefix, repository, tag, d)
}

// redisTime is a time as keys have it: Unix seconds, with a fraction, since pulls
// of the same second have an order.
func redisTime(t time.Time) string {
	return fmt.Sprintf("%d.%06d", t.Unix(), t.Nanosecond()/1000)
}

func parseRedisTime(s string) (time.Time, error) {
	whole, fraction, _ := strings.Cut(s, ".")
	seconds, err := strconv.ParseInt(whole, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("%q is no time", s)
	}
	var micros int64
	if fraction != "" {
		if micros, err = strconv.ParseInt((fraction + "000000")[:6], 10, 64); err != nil {
			return time.Time{}, fmt.Errorf("%q is no time", s)
		}
	}
	return time.Unix(seconds, micros*1000).UTC(), nil
}

// Each script touches one key, so that it runs on a cluster, and writes only what
// can't fail after its first change.
var (
	// recordScript counts pulls: count, time, repository_id, tag_name,
	// manifest_digest, pull_method.
	recordScript = redis.NewScript(`
local last = redis.call('HGET', KEYS[1], 'last_pull_timestamp')
local newer = not last or tonumber(last) < tonumber(ARGV[2])
redis.call('HINCRBY', KEYS[1], 'pull_count', ARGV[1])
if not last then
  redis.call('HSET', KEYS[1], 'repository_id', ARGV[3], 'tag_name', ARGV[4], 'manifest_digest', ARGV[5],
    'pull_method', ARGV[6], 'last_pull_timestamp', ARGV[2])
elseif newer then
  redis.call('HSET', KEYS[1], 'last_pull_timestamp', ARGV[2])
end
redis.call('PERSIST', KEYS[1])
return 1`)

	// claimScript gives what a key has counted to a batch: its number. The answer is
	// the claim that the key has now and, if that is the batch's, what it comes to;
	// nothing if there is nothing to claim. Once more it answers the same.
	claimScript = redis.NewScript(`
local h = redis.call('HMGET', KEYS[1], 'claim', 'done', 'pull_count', 'last_pull_timestamp', 'claimed_count', 'claimed_ts',
  'repository_id', 'tag_name', 'manifest_digest', 'pull_method')
if h[1] and h[1] ~= '' then
  if h[1] ~= ARGV[1] then return {h[1]} end
  return {h[1], h[5], h[6], h[7], h[8], h[9], h[10]}
end
if (tonumber(h[2] or 0) or 0) >= tonumber(ARGV[1]) then return false end
if not ((tonumber(h[3] or 0) or 0) > 0) then return false end
local at = h[4] or '0'
redis.call('HSET', KEYS[1], 'claim', ARGV[1], 'claimed_count', h[3], 'claimed_ts', at, 'pull_count', '0')
return {ARGV[1], h[3], at, h[7], h[8], h[9], h[10]}`)

	// settleScript ends the claim of a batch: its number, "applied" or "abandoned", and
	// the seconds that a key with nothing to count stays. What wasn't applied is to be
	// counted again. Without that claim it does nothing.
	settleScript = redis.NewScript(`
local h = redis.call('HMGET', KEYS[1], 'claim', 'claimed_count', 'pull_count')
if h[1] ~= ARGV[1] then return 0 end
if ARGV[2] ~= 'applied' then redis.call('HINCRBY', KEYS[1], 'pull_count', h[2]) end
redis.call('HSET', KEYS[1], 'claim', '', 'claimed_count', '', 'claimed_ts', '', 'done', ARGV[1])
if ARGV[2] == 'applied' and h[3] == '0' then redis.call('EXPIRE', KEYS[1], ARGV[3]) end
return 1`)

	// useScript remembers when names were last used: seconds to live, and pairs of a
	// field and a time.
	useScript = redis.NewScript(`
for i = 2, #ARGV, 2 do
  local last = redis.call('HGET', KEYS[1], ARGV[i])
  if not last or tonumber(last) < tonumber(ARGV[i + 1]) then
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
  end
end
redis.call('EXPIRE', KEYS[1], ARGV[1])
return 1`)

	// epochScript raises a number, unless it is below what it was known to be: 0 is
	// the answer then.
	epochScript = redis.NewScript(`
local now = tonumber(redis.call('GET', KEYS[1]) or '0')
if now < tonumber(ARGV[2]) then return 0 end
if now < tonumber(ARGV[1]) then redis.call('SET', KEYS[1], ARGV[1]) end
return 1`)

	// hintScript remembers a tag, and those before it: it, the seconds that it holds, the
	// time, and how many may be remembered.
	hintScript = redis.NewScript(`
redis.call('LPUSH', KEYS[1], ARGV[3] .. ' ' .. ARGV[1])
redis.call('LTRIM', KEYS[1], 0, ARGV[4] - 1)
redis.call('EXPIRE', KEYS[1], ARGV[2])
return 1`)

	// takeHintScript reads the last that hintScript remembered, and removes it: the
	// seconds that it holds, and the time.
	takeHintScript = redis.NewScript(`
local last = redis.call('LPOP', KEYS[1])
if not last then return false end
local at, tag = string.match(last, '^(%S+) (.*)$')
if tonumber(ARGV[2]) - tonumber(at) > tonumber(ARGV[1]) then
  redis.call('DEL', KEYS[1])
  return false
end
return tag`)
)
