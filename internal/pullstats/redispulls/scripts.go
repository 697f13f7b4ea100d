package redispulls

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/purser-registry/purser/internal/oci"
)

// Keys of pulls.
const (
	// counterPrefix is the prefix of the keys that count pulls. The names of the keys and of
	// their fields are those of Quay's design, but the repository's id is in braces, so that
	// a cluster keeps all counters of a repository, and the set that lists them, on one
	// server.
	counterPrefix = "pull_events:repo:"
	// uncountedPrefix is the prefix of the keys of sets, one for each repository. The set
	// has the names of the repository's counters that aren't settled: the statistics may
	// lack pulls of them.
	uncountedPrefix = "pull_events:uncounted:"
	// epochKey is the key that has the epoch, the number of the newest flush. If it is lower
	// than the number that Redis must have according to the database, Redis has lost data.
	// If it is higher than the number of every flush in the database, the database was
	// restored to an older state.
	epochKey = "pull_events:flush"
	// ownerKey is the key that has the identity of the registry to which this Redis belongs.
	ownerKey = "pull_events:owner"
	// headPrefix is the prefix of the keys that have the HEADs of one client for one
	// manifest, with the tags that the client asked for.
	headPrefix = "pull_events:head:"
)

// counterKey returns the key of the counter of a manifest's pulls by the given tag or, if
// tag is "", by digest.
func counterKey(repository int64, tag string, d oci.Digest) string {
	if tag == "" {
		return fmt.Sprintf("%s{%d}:digest:%s", counterPrefix, repository, d)
	}
	return fmt.Sprintf("%s{%d}:tag:%s:%s", counterPrefix, repository, tag, d)
}

// uncountedKey returns the key of a repository's set of counters.
func uncountedKey(repository int64) string { return fmt.Sprintf("%s{%d}", uncountedPrefix, repository) }

// repositoryOf returns the repository id that a counter's key has in braces; 0 if it has
// none.
func repositoryOf(key string) int64 {
	_, rest, _ := strings.Cut(key, "{")
	text, _, _ := strings.Cut(rest, "}")
	id, _ := strconv.ParseInt(text, 10, 64)
	return id
}

// redisTime formats a time as counters store it: Unix seconds with six decimals, so that
// pulls within a second have an order.
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

// On a cluster, all keys of one script are on one server. A script changes a counter only
// after all steps that can fail, so a script that fails has changed no counter.
var (
	// recordScript adds pulls to a counter. Keys: the counter, and the repository's set of
	// counters. Arguments: count, time, repository_id, tag_name, manifest_digest,
	// pull_method. It returns the sequence number of these pulls: the server's clock in
	// microseconds or, if the counter already has this number or a greater one, the
	// counter's number plus 1. The field `born` is the sequence number of the counter's
	// first pulls: if the key is deleted and made again, `born` is greater. When the first
	// pull of a later day comes (in UTC), the field `days` gets the day that has ended, with
	// the pulls that the counter had at its end; it keeps the last 31 days. A counter whose
	// pulls are all of one day has no such field.
	recordScript = redis.NewScript(`
local now = redis.call('TIME')
local h = redis.call('HMGET', KEYS[1], 'seq', 'last_pull_timestamp', 'pull_count', 'days')
local seq = tonumber(now[1]) * 1000000 + tonumber(now[2])
seq = string.format('%.0f', math.max(seq, (tonumber(h[1] or 0) or 0) + 1))
local newer = h[2] and tonumber(h[2]) < tonumber(ARGV[2])
local day = newer and math.floor(tonumber(h[2]) / 86400)
local days = newer and day < math.floor(tonumber(ARGV[2]) / 86400) and (h[4] or '') .. string.format('%.0f', day) .. ':' .. h[3] .. ' '
if days and select(2, string.gsub(days, ' ', '')) > 31 then days = string.gsub(days, '^%S+ ', '') end
redis.call('SADD', KEYS[2], KEYS[1])
redis.call('HINCRBY', KEYS[1], 'pull_count', ARGV[1])
if not h[2] then
  redis.call('HSET', KEYS[1], 'repository_id', ARGV[3], 'tag_name', ARGV[4], 'manifest_digest', ARGV[5],
    'pull_method', ARGV[6], 'last_pull_timestamp', ARGV[2], 'born', seq, 'seq', seq)
else
  redis.call('HSET', KEYS[1], 'seq', seq, 'last_pull_timestamp', newer and ARGV[2] or h[2])
  if days then redis.call('HSET', KEYS[1], 'days', days) end
end
redis.call('PERSIST', KEYS[1])
return seq`)

	// settleScript settles a counter if the statistics have all of its pulls: it removes the
	// counter from the repository's set, and has its key expire. Keys: the same as for
	// recordScript. Arguments: the values of pull_count and born that the statistics have,
	// and the seconds after which the key expires.
	settleScript = redis.NewScript(`
local h = redis.call('HMGET', KEYS[1], 'pull_count', 'born')
if h[1] ~= ARGV[1] or h[2] ~= ARGV[2] then return 0 end
redis.call('SREM', KEYS[2], KEYS[1])
redis.call('EXPIRE', KEYS[1], ARGV[3])
return 1`)

	// epochScript raises the epoch. Arguments: the new number, and the least number that
	// Redis must have already. If Redis has a lower number, it has lost data: then the
	// script changes nothing and returns 0. Otherwise it returns 1.
	epochScript = redis.NewScript(`
local now = tonumber(redis.call('GET', KEYS[1]) or '0')
if now < tonumber(ARGV[2]) then return 0 end
if now < tonumber(ARGV[1]) then redis.call('SET', KEYS[1], ARGV[1]) end
return 1`)

	// headScript stores a HEAD by tag. A HEAD that is sent again is stored once, and stays
	// marked as used if a GET has used it. Key: the HEADs of one client for one manifest. If
	// the key has too many HEADs, the script deletes those that are too old to be joined or,
	// if there are none, the oldest one. Arguments: the HEAD's name, its time in
	// microseconds, the client's port, the tag, the microseconds for which a HEAD can be
	// joined, the largest number of HEADs, and the seconds after which the key expires.
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

	// takeScript finds the HEAD by tag that belongs to a GET by digest, by the same rule as
	// the function pick, and marks the HEAD as used by this GET. Key: the HEADs of one
	// client for one manifest. Arguments: the GET's name, its time in microseconds, the
	// client's port, and the microseconds for which a HEAD can be joined. It returns the
	// HEAD's tag, or false if there is no HEAD. A repeated call for the same GET returns the
	// same tag.
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
