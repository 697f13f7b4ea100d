package redispulls

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/purser-registry/purser/internal/pullstats/statsdb"
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
		if got, cause := outcomeOf(err); got != Refused || !unfit(cause) {
			t.Errorf("a record in a key whose %s is %q: %v", field, text, err)
		}
		for name, was := range before {
			if now := k.c.HGet(t.Context(), k.key, name).Val(); now != was {
				t.Errorf("%s is %q, and was %q before a record that failed", name, now, was)
			}
		}
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

// A recorder may send a HEAD to Redis twice. Redis must store it once, and keep it marked as
// used if a GET has used it. Of many HEADs of one client, Redis must keep the newest ten,
// the limit that the test sets.
func TestHeadsInRedis(t *testing.T) {
	t.Parallel()
	c := startRedis(t).client(t)
	put := func(name string, second int, tag string) {
		must(t, headScript.Run(t.Context(), c, []string{"k"}, name, noon.Add(time.Duration(second)*time.Second).UnixMicro(), 0, tag, int64(90e6), 10, 90).Err())
	}
	take := func(name string, second int) string {
		tag, err := takeScript.Run(t.Context(), c, []string{"k"}, name, noon.Add(time.Duration(second)*time.Second).UnixMicro(), 0, int64(30e6)).Text()
		if err != nil && !errors.Is(err, redis.Nil) {
			t.Fatal(err)
		}
		return tag
	}
	put("a", 0, "v1")
	put("a", 0, "v1")
	if first, second := take("g1", 1), take("g2", 1); first != "v1" || second != "" {
		t.Errorf("%q and %q, want v1 and nothing", first, second)
	}
	put("a", 0, "v1")
	if tag := take("g3", 1); tag != "" {
		t.Errorf("%q, which is used", tag)
	}
	for i := range 30 {
		put(fmt.Sprint("h", i), 60+i, fmt.Sprint("t", i))
	}
	if n := c.HLen(t.Context(), "k").Val(); n != 10 {
		t.Errorf("%d HEADs are remembered, want 10", n)
	}
	if tag := take("g4", 90); tag != "t29" {
		t.Errorf("%q, want the newest", tag)
	}
	if ttl := c.TTL(t.Context(), "k").Val(); ttl <= 0 || ttl > 90*time.Second {
		t.Errorf("the key stays for %v", ttl)
	}
}

// A counter that lives for months keeps the last days only, and a field that can't be read is
// ignored: no pull is lost.
func TestDaysOfCounters(t *testing.T) {
	t.Parallel()
	k := testKey(t)
	for i := range 40 {
		k.record(2, midnight.AddDate(0, 0, i))
		k.record(1, midnight.AddDate(0, 0, i-1)) // late: it counts for the day of the pull before
	}
	list := strings.Fields(k.c.HGet(t.Context(), k.key, "days").Val())
	if day := midnight.AddDate(0, 0, 38).Unix() / 86400; len(list) != 31 || list[30] != fmt.Sprintf("%d:117", day) {
		t.Errorf("the days are %q", list)
	}
	r := counter{count: 120, last: midnight.AddDate(0, 0, 39), ended: parseEnded(strings.Join(list, " "))}
	want := []statsdb.DayPulls{{Day: midnight.AddDate(0, 0, 38), Pulls: 2}, {Day: midnight.AddDate(0, 0, 39), Pulls: 3}}
	if got := r.byDay(5); !slices.Equal(got, want) {
		t.Errorf("the last 5 pulls are %v, want %v", got, want)
	}
	if got := r.byDay(120); len(got) != 32 || got[0].Pulls != 27 {
		t.Errorf("all pulls are %v", got)
	}
	for _, text := range []string{"", "x", "20000:", ":5", "20000:5 x"} {
		if r.ended = parseEnded(text); !slices.Equal(r.byDay(120), []statsdb.DayPulls{{Day: midnight.AddDate(0, 0, 39), Pulls: 120}}) {
			t.Errorf("%q: %v", text, r.byDay(120))
		}
	}
}
