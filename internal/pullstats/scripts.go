package pullstats

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/purser-registry/purser/internal/oci"
)

// Keys of pulls. Their names are those of Quay's design.
const (
	pullPrefix = "pull_events:repo:"
	// epochKey has the number of the newest batch. If Redis has a lower number than the
	// database remembers, Redis has lost data; if it has a higher one, the database was
	// restored.
	epochKey = "pull_events:epoch"
	// ownerKey names the registry whose pulls these are.
	ownerKey = "pull_events:owner"
	// usesPrefix begins the keys of last-used times.
	usesPrefix = "pull_events:uses:"
	// headPrefix begins the keys of the tags that a client has just asked for by HEAD.
	headPrefix = "pull_events:head:"
)

// pullKey returns the key that counts pulls of a manifest: by a tag, or by digest when tag
// is "".
func pullKey(repository int64, tag string, d oci.Digest) string {
	if tag == "" {
		return fmt.Sprintf("%s%d:digest:%s", pullPrefix, repository, d)
	}
	return fmt.Sprintf("%s%d:tag:%s:%s", pullPrefix, repository, tag, d)
}

// redisTime formats a time as keys have it: Unix seconds with a fraction, so that pulls
// within a second have an order.
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

// Each script uses one key, so that it runs on a cluster, and makes its first change only
// when nothing can fail any more.
var (
	// recordScript counts pulls. Arguments: count, time, repository_id, tag_name,
	// manifest_digest, pull_method. It returns their sequence number: the server's clock in
	// microseconds, raised so that it exceeds all earlier numbers of this key, even if the
	// key was deleted meanwhile.
	recordScript = redis.NewScript(`
local now = redis.call('TIME')
local seq = tonumber(now[1]) * 1000000 + tonumber(now[2])
seq = string.format('%.0f', math.max(seq, (tonumber(redis.call('HGET', KEYS[1], 'seq') or 0) or 0) + 1))
local last = redis.call('HGET', KEYS[1], 'last_pull_timestamp')
local newer = not last or tonumber(last) < tonumber(ARGV[2])
redis.call('HINCRBY', KEYS[1], 'pull_count', ARGV[1])
if not last then
  redis.call('HSET', KEYS[1], 'repository_id', ARGV[3], 'tag_name', ARGV[4], 'manifest_digest', ARGV[5],
    'pull_method', ARGV[6], 'last_pull_timestamp', ARGV[2], 'born', seq)
elseif newer then
  redis.call('HSET', KEYS[1], 'last_pull_timestamp', ARGV[2])
end
redis.call('HSET', KEYS[1], 'seq', seq)
redis.call('PERSIST', KEYS[1])
return seq`)

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

	// settleScript ends a batch's claim. Arguments: the batch's number, "applied" or
	// "abandoned", and the seconds that a key with nothing to count stays. The count of an
	// abandoned batch is added back. If the batch doesn't have the claim, it does nothing.
	settleScript = redis.NewScript(`
local h = redis.call('HMGET', KEYS[1], 'claim', 'claimed_count', 'pull_count')
if h[1] ~= ARGV[1] then return 0 end
if ARGV[2] ~= 'applied' then redis.call('HINCRBY', KEYS[1], 'pull_count', h[2]) end
redis.call('HSET', KEYS[1], 'claim', '', 'claimed_count', '', 'claimed_ts', '', 'done', ARGV[1])
if ARGV[2] == 'applied' and h[3] == '0' then redis.call('EXPIRE', KEYS[1], ARGV[3]) end
return 1`)

	// useScript stores last-used times. Arguments: seconds to live, and pairs of a field
	// and a time.
	useScript = redis.NewScript(`
for i = 2, #ARGV, 2 do
  local last = redis.call('HGET', KEYS[1], ARGV[i])
  if not last or tonumber(last) < tonumber(ARGV[i + 1]) then
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
  end
end
redis.call('EXPIRE', KEYS[1], ARGV[1])
return 1`)

	// epochScript raises the epoch. Arguments: the new number, and the number that it must
	// have reached before; if it is below that, the script returns 0 and changes nothing.
	epochScript = redis.NewScript(`
local now = tonumber(redis.call('GET', KEYS[1]) or '0')
if now < tonumber(ARGV[2]) then return 0 end
if now < tonumber(ARGV[1]) then redis.call('SET', KEYS[1], ARGV[1]) end
return 1`)

	// headScript stores a HEAD by tag, once however often it is sent. Arguments: its name,
	// the time in microseconds, the connection's port, the tag, for how many microseconds a
	// HEAD matters, how many are kept, and the seconds that the key stays.
	headScript = redis.NewScript(`
if redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[6]) then
  local all, oldest, first = redis.call('HGETALL', KEYS[1]), nil, nil
  for i = 1, #all, 2 do
    local at = tonumber(string.match(all[i + 1], '^%S+')) or 0
    if tonumber(ARGV[2]) - at > tonumber(ARGV[5]) then
      redis.call('HDEL', KEYS[1], all[i])
    elseif not first or at < first then
      oldest, first = all[i], at
    end
  end
  if redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[6]) then redis.call('HDEL', KEYS[1], oldest) end
end
redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[2] .. ' ' .. ARGV[3] .. ' ' .. ARGV[4] .. ' ')
redis.call('EXPIRE', KEYS[1], ARGV[7])
return 1`)

	// takeScript chooses a HEAD for a GET by digest, by the rule of pick, and marks it as
	// used by that GET. Arguments: the GET's name, the time in microseconds, the
	// connection's port, and for how many microseconds a HEAD can be joined. It returns the
	// tag. Repeated, it returns the same.
	takeScript = redis.NewScript(`
local all, best, bestAt, bestOwn, bestTag, bestPort = redis.call('HGETALL', KEYS[1]), nil, nil, nil, nil, nil
for i = 1, #all, 2 do
  local at, port, tag, user = string.match(all[i + 1], '^(%S+) (%S+) (%S+) (%S*)$')
  if at and user == ARGV[1] then return tag end
  local age = at and tonumber(ARGV[2]) - tonumber(at)
  if at and user == '' and age >= 0 and age <= tonumber(ARGV[4]) then
    local own = port == ARGV[3] and port ~= '0'
    local newer = bestAt and (tonumber(at) > bestAt or tonumber(at) == bestAt and all[i] > best)
    if not best or own and not bestOwn or own == bestOwn and newer then
      best, bestAt, bestOwn, bestTag, bestPort = all[i], tonumber(at), own, tag, port
    end
  end
end
if not best then return false end
redis.call('HSET', KEYS[1], best, string.format('%.0f', bestAt) .. ' ' .. bestPort .. ' ' .. bestTag .. ' ' .. ARGV[1])
return bestTag`)
)
