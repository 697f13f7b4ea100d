package pullstats

import (
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// keyTest runs scripts on one counter and its repository's set.
type keyTest struct {
	*testing.T
	c        *redis.Client
	key, set string
}

func (k keyTest) run(s *redis.Script, args ...any) any {
	k.Helper()
	got, err := s.Run(k.Context(), k.c, []string{k.key, k.set}, args...).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		k.Fatal(err)
	}
	return got
}

func (k keyTest) record(n int, at time.Time) {
	k.Helper()
	k.run(recordScript, n, redisTime(at), 1, "v1", digest("a").String(), "tag")
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

func testKey(t *testing.T) keyTest {
	return keyTest{t, startRedis(t).client(t), counterKey(1, "v1", digest("a")), uncountedKey(1)}
}

// settleScript must settle a counter only if the call has the counter's present values of
// pull_count and born.
func TestScripts(t *testing.T) {
	t.Parallel()
	k := testKey(t)
	settled := func(count int64, born string, want bool) {
		t.Helper()
		if got := k.run(settleScript, count, born, 900) == int64(1); got != want {
			t.Errorf("settled at %d of %s: %v, want %v", count, born, got, want)
		}
		ttl := k.c.TTL(t.Context(), k.key).Val()
		if expires := ttl > 0 && ttl <= 15*time.Minute; expires != want || k.c.SIsMember(t.Context(), k.set, k.key).Val() == want {
			t.Errorf("settled at %d of %s: it goes in %v, and is in %v", count, born, ttl, k.c.SMembers(t.Context(), k.set).Val())
		}
	}
	k.record(2, noon)
	k.record(3, noon.Add(-time.Hour))
	k.want(map[string]string{
		"pull_count": "5", "last_pull_timestamp": redisTime(noon), "repository_id": "1", "tag_name": "v1",
		"manifest_digest": digest("a").String(), "pull_method": "tag",
	})
	born := k.c.HGet(t.Context(), k.key, "born").Val()
	settled(4, born, false)
	settled(6, born, false)
	settled(5, "1", false)
	settled(5, born, true)
	settled(5, born, true) // repeated
	k.record(1, noon.Add(time.Second))
	settled(5, born, false) // too late: the counter has further pulls
	k.want(map[string]string{"pull_count": "6", "last_pull_timestamp": redisTime(noon.Add(time.Second)), "born": born})
	settled(6, born, true)
	must(t, k.c.Del(t.Context(), k.key).Err())
	k.run(settleScript, 6, born, 900)
	if k.c.Exists(t.Context(), k.key).Val() != 0 {
		t.Error("a counter that is gone came back")
	}
	k.record(6, noon)
	settled(6, born, false)
	again := k.c.HGet(t.Context(), k.key, "born").Val()
	if len(again) != len(born) || again <= born {
		t.Errorf("made again, it is born at %s, before at %s", again, born)
	}
	settled(6, again, true)
}

// The fields of a counter are invalid, so recordScript fails. It must have changed nothing,
// since the pull that it should have counted is then counted from the audit log.
func TestScriptsFailWhole(t *testing.T) {
	t.Parallel()
	k := testKey(t)
	for field, text := range map[string]string{"last_pull_timestamp": "soon", "pull_count": "many"} {
		must(t, k.c.Del(t.Context(), k.key).Err())
		k.record(1, noon)
		must(t, k.c.HSet(t.Context(), k.key, field, text).Err())
		before := k.c.HGetAll(t.Context(), k.key).Val()
		err := recordScript.Run(t.Context(), k.c, []string{k.key, k.set}, 1, redisTime(noon.Add(time.Second)), 1, "v1", digest("a").String(), "tag").Err()
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

// Because a replica's clock is wrong, a pull that comes after another one has an earlier
// time. It must not lower the time in the counter, nor the last-used time.
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
	rec.opt.LastUsed.used(s.repositories[0], "v1", digest("a"), now)
	rec.opt.LastUsed.used(s.repositories[0], "v1", digest("a"), now.Add(-time.Hour))
	must(t, rec.opt.LastUsed.Close(t.Context()))
	other := s.recorder(t, r, unlogged)
	other.opt.LastUsed.used(s.repositories[0], "v1", digest("a"), now.Add(-time.Hour))
	must(t, other.opt.LastUsed.Close(t.Context()))
	var tag, manifest time.Time
	must(t, s.stats.Pool.QueryRow(t.Context(), "SELECT (SELECT last_check_date FROM tagpullstatistics WHERE tag_name = 'v1'), (SELECT last_check_date FROM manifestpullstatistics WHERE manifest_digest = $1)",
		digest("a").String()).Scan(&tag, &manifest))
	if !tag.Equal(now) || !manifest.Equal(now) {
		t.Errorf("the last-used times are %v and %v, want %v", tag, manifest, now)
	}
}

// unfit must distinguish errors of a key that isn't a counter from temporary errors. It
// must do so even if Redis 6 reports them with the prefix ERR because they occurred inside
// a script.
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
