package pullstats

import (
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// keyTest runs scripts on one key.
type keyTest struct {
	*testing.T
	c   *redis.Client
	key string
}

func (k keyTest) run(s *redis.Script, args ...any) any {
	k.Helper()
	got, err := s.Run(k.Context(), k.c, []string{k.key}, args...).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		k.Fatal(err)
	}
	return got
}

func (k keyTest) record(n int, at time.Time) {
	k.Helper()
	k.run(recordScript, n, redisTime(at), 1, "v1", digest("a").String(), "tag")
}

// claims returns what a batch has, -1: nothing, -2: another one has it.
func (k keyTest) claims(batch int) string {
	k.Helper()
	fields, _ := k.run(claimScript, batch).([]any)
	switch len(fields) {
	case 0:
		return "nothing"
	case 1:
		return "of " + fields[0].(string)
	}
	return fields[1].(string)
}

func (k keyTest) want(fields map[string]string) {
	k.Helper()
	h, err := k.c.HGetAll(k.Context(), k.key).Result()
	must(k, err)
	for name, want := range fields {
		if h[name] != want {
			k.Errorf("%s is %q, want %q", name, h[name], want)
		}
	}
}

// A key's way through batches: repeated, late and foreign calls change nothing.
func TestScripts(t *testing.T) {
	t.Parallel()
	k := keyTest{t, startRedis(t).client(t), "pull_events:repo:1:tag:v1:" + digest("a").String()}
	is := func(got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("it is %s, want %s", got, want)
		}
	}
	is(k.claims(1), "nothing")
	k.record(2, noon)
	k.record(3, noon.Add(-time.Hour))
	k.want(map[string]string{
		"pull_count": "5", "last_pull_timestamp": redisTime(noon), "repository_id": "1", "tag_name": "v1",
		"manifest_digest": digest("a").String(), "pull_method": "tag",
	})
	is(k.claims(5), "5")
	k.record(1, noon.Add(time.Second))
	is(k.claims(5), "5") // repeated
	is(k.claims(6), "of 5")
	is(k.claims(4), "of 5")
	k.run(settleScript, 6, "applied", 900) // of another batch
	k.run(settleScript, 4, "abandoned", 900)
	k.want(map[string]string{"claim": "5", "claimed_count": "5", "claimed_ts": redisTime(noon), "pull_count": "1"})
	k.run(settleScript, 5, "abandoned", 900)
	k.run(settleScript, 5, "abandoned", 900) // repeated
	k.want(map[string]string{"claim": "", "claimed_count": "", "claimed_ts": "", "pull_count": "6", "done": "5"})
	if ttl := k.c.TTL(t.Context(), k.key).Val(); ttl != -1 {
		t.Errorf("a key with pulls is gone in %v", ttl)
	}
	is(k.claims(5), "nothing") // late: what it claimed now nobody would apply
	is(k.claims(4), "nothing")
	is(k.claims(10), "6")
	k.run(settleScript, 10, "applied", 900)
	k.run(settleScript, 10, "abandoned", 900) // late
	k.want(map[string]string{"claim": "", "pull_count": "0", "done": "10"})
	if ttl := k.c.TTL(t.Context(), k.key).Val(); ttl <= 0 || ttl > 15*time.Minute {
		t.Errorf("a key without pulls is gone in %v", ttl)
	}
	is(k.claims(11), "nothing")
	k.record(1, noon)
	if ttl := k.c.TTL(t.Context(), k.key).Val(); ttl != -1 {
		t.Errorf("a key with a new pull is gone in %v", ttl)
	}
	k.want(map[string]string{"last_pull_timestamp": redisTime(noon.Add(time.Second))})
	is(k.claims(9), "nothing") // greater than batches before, less than done
	is(k.claims(100), "1")     // by number, not by text
}

// A script that fails has changed nothing: what it was to count is counted elsewhere.
func TestScriptsFailWhole(t *testing.T) {
	t.Parallel()
	k := keyTest{t, startRedis(t).client(t), "pull_events:repo:1:tag:v1:" + digest("a").String()}
	for field, text := range map[string]string{"last_pull_timestamp": "soon", "pull_count": "many"} {
		must(t, k.c.Del(t.Context(), k.key).Err())
		k.record(1, noon)
		must(t, k.c.HSet(t.Context(), k.key, field, text).Err())
		before := k.c.HGetAll(t.Context(), k.key).Val()
		err := recordScript.Run(t.Context(), k.c, []string{k.key}, 1, redisTime(noon.Add(time.Second)), 1, "v1", digest("a").String(), "tag").Err()
		if got, cause := outcomeOf(err); got != refused || !unfit(cause) {
			t.Errorf("a record in a key whose %s is %q: %v", field, text, err)
		}
		for name, was := range before {
			if now := k.c.HGet(t.Context(), k.key, name).Val(); now != was {
				t.Errorf("%s is %q, and was %q before a record that failed", name, now, was)
			}
		}
	}
}

// Times in Redis are raised only.
func TestRedisUsesSkew(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	s := open(t, false, 1)
	r := server.open(t, s.stats)
	rec := s.recorder(t, r, unlogged)
	now := time.Now().Truncate(time.Microsecond)
	w := s.flusher(t, r)
	check := func(when string) {
		t.Helper()
		uses, err := s.asked(t, r)
		must(t, err)
		if at := uses.Tags["v1"]; at.Before(now) || at.After(now.Add(time.Second)) {
			t.Errorf("%s: v1 was used at %v, want %v and a second more at most", when, at, now)
		}
		if at := uses.Manifests[digest("a").String()]; at.Before(now) || at.After(now.Add(time.Second)) {
			t.Errorf("%s: the manifest was used at %v, want %v and a second more at most", when, at, now)
		}
	}
	recorded(t, rec, s.pull(0, "v1", "a", now))
	for _, skew := range []time.Duration{-time.Second, -10 * time.Minute, -59 * time.Minute} {
		recorded(t, rec, s.pull(0, "v1", "a", now.Add(skew)))
		recorded(t, rec, s.pull(0, "v1", "b", now.Add(skew)))
		check("recorded")
		must(t, w.Flush(t.Context()))
		check("flushed")
	}
	if got := s.books(t)[tagName(s, 0, "v1")]; !got.Last.Equal(now) || got.Count != 7 || got.Other != digest("a").String() {
		t.Errorf("v1 has %+v", got)
	}
	rec.opt.Marks.used(s.repositories[0], "v1", digest("a"), now)
	rec.opt.Marks.used(s.repositories[0], "v1", digest("a"), now.Add(-time.Hour))
	must(t, rec.opt.Marks.Close(t.Context()))
	other := s.recorder(t, r, unlogged)
	other.opt.Marks.used(s.repositories[0], "v1", digest("a"), now.Add(-time.Hour))
	must(t, other.opt.Marks.Close(t.Context()))
	var tag, manifest time.Time
	must(t, s.stats.Pool.QueryRow(t.Context(), "SELECT (SELECT last_check_date FROM tagpullstatistics WHERE tag_name = 'v1'), (SELECT last_check_date FROM manifestpullstatistics WHERE manifest_digest = $1)",
		digest("a").String()).Scan(&tag, &manifest))
	if !tag.Equal(now) || !manifest.Equal(now) {
		t.Errorf("the marks are %v and %v, want %v", tag, manifest, now)
	}
}

// Which answers tell that a key is no counter, and which may pass: Redis 6 has what a
// script met inside an ERR.
func TestUnfit(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"WRONGTYPE Operation against a key holding the wrong kind of value script: 5f, on @user_script:2.":                                   true,
		"ERR Error running script (call to f_5f): @user_script:2: WRONGTYPE Operation against a key holding the wrong kind of value":         true,
		"ERR hash value is not an integer script: 5f, on @user_script:4.":                                                                    true,
		"ERR user_script:3: attempt to compare nil with number script: 5f, on @user_script:3.":                                               true,
		"ERR increment or decrement would overflow script: 5f, on @user_script:4.":                                                           true,
		"OOM command not allowed when used memory > 'maxmemory'. script: 5f, on @user_script:2.":                                             false,
		"ERR Error running script (call to f_5f): @user_script:2: @user_script: 2: -OOM command not allowed when used memory > 'maxmemory'.": false,
		"ERR Error running script (call to f_5f): @user_script:2: @user_script: 2: -READONLY You can't write against a read only replica.":   false,
		"ERR max number of clients reached": false,
	} {
		if got := unfit(errors.New(text)); got != want {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
}
