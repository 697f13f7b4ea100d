package pullstats

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strings"
	"time"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/oci"
)

// usesFor is how long Redis remembers at least what was used: longer than any statistics
// that policies go by may be behind.
const usesFor = 2 * time.Hour

// record has Redis count pulls, and returns those that it didn't take.
func (q *redisQueue) record(ctx context.Context, batch []*event) (kept []*event, err error) {
	// The end of the process doesn't cut off what is under way: it would be lost.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	if kept, err = q.heads.join(ctx, batch); err != nil {
		return kept, err
	}
	groups := grouped(batch)
	uses := usesOf(groups)
	calls := make([]*call, 0, len(uses)+len(groups))
	for _, u := range uses {
		calls = append(calls, u.call)
	}
	for _, g := range groups {
		calls = append(calls, g.call)
	}
	q.r.opt.Redis.run(ctx, calls)
	for _, u := range uses {
		if got, _ := u.call.outcome(); got != answered {
			for _, e := range u.events {
				e.unseen = true // if it is counted all the same
			}
		}
	}
	for _, g := range groups {
		got, cause := g.call.outcome()
		switch {
		case got == refused && unfit(cause):
			q.spillAll(ctx, g.events)
			q.r.opt.Logger.WarnContext(ctx, "Redis has something else in the place of a counter of pulls", "key", g.call.key, "error", cause)
		case got == refused:
			kept, err = append(kept, g.events...), cause
		default:
			seq, _ := g.call.cmd.Int64() // 0: it isn't known
			q.counted(ctx, g.events, got, seq)
			if got == unanswered {
				err = cause
			}
		}
	}
	if err != nil {
		return kept, fmt.Errorf("sending pulls to Redis: %w", err)
	}
	return kept, nil
}

// counted logs pulls that Redis has counted or, where it didn't answer, may have:
// who would count them again might count them twice.
func (q *redisQueue) counted(ctx context.Context, list []*event, got outcome, seq int64) {
	n := 0
	for _, e := range list {
		n += e.n
		e.CountedBy, e.RedisSeq = audit.CountedByRedis, seq
		q.r.log(ctx, e.Entry)
		if e.name != "" && e.Tag != "" {
			q.heads.used(e.Entry)
		}
		switch {
		case got == unanswered:
			q.r.uncounted(e.Entry)
		case e.unseen:
			q.r.used(e.Entry)
		}
	}
	if got == unanswered {
		q.r.opt.Metrics.event(eventUnanswered, n)
		return
	}
	q.r.opt.Metrics.event(eventRecorded, n)
}

// unfit says whether an answer tells that a key holds something else than it should,
// and always will. Redis 6 has what a script met inside an ERR of its own, where it has
// causes that pass too.
func unfit(err error) bool {
	for _, text := range []string{"WRONGTYPE ", "is not an integer", "would overflow", "attempt to "} {
		if strings.Contains(err.Error(), text) {
			return true
		}
	}
	return false
}

// group is the pulls of a batch that have one key.
type group struct {
	events []*event
	n      int // pulls
	last   time.Time
	call   *call
}

// counterName is what a counter counts.
type counterName struct {
	repository int64
	tag        string
	digest     oci.Digest
}

func grouped(batch []*event) []*group {
	groups := make(map[counterName]*group, len(batch))
	var list []*group
	for _, e := range batch {
		name := counterName{e.RepositoryID, e.Tag, e.Digest}
		g := groups[name]
		if g == nil {
			g = &group{}
			groups[name] = g
			list = append(list, g)
		}
		g.events, g.n = append(g.events, e), g.n+e.n
		if e.Time.After(g.last) {
			g.last = e.Time
		}
	}
	for _, g := range list {
		e, method := g.events[0], "tag"
		if e.Tag == "" {
			method = "digest"
		}
		g.call = &call{
			script: recordScript, key: pullKey(e.RepositoryID, e.Tag, e.Digest),
			args: []any{g.n, redisTime(g.last), e.RepositoryID, e.Tag, e.Digest.String(), method},
		}
	}
	return list
}

// usesOf are the calls by which Redis remembers when names of groups were used, one
// for each repository and hour.
func usesOf(groups []*group) []*group {
	uses := map[string]*group{}
	var list []*group
	for _, g := range groups {
		e := g.events[0]
		key := usesKey(e.RepositoryID, g.last)
		u := uses[key]
		if u == nil {
			u = &group{call: &call{script: useScript, key: key, args: []any{int((usesFor + 2*time.Hour).Seconds())}}}
			uses[key] = u
			list = append(list, u)
		}
		u.events = append(u.events, g.events...)
		at := g.last.Unix() + 1
		u.call.args = append(u.call.args, useField(e.Digest.String()), at)
		if e.Tag != "" {
			u.call.args = append(u.call.args, useField(e.Tag), at)
		}
	}
	return list
}

// usesKey is the key of what was used in a repository in the hour of a time.
func usesKey(repository int64, at time.Time) string {
	return fmt.Sprintf("%s%d:%d", usesPrefix, repository, at.Unix()/3600)
}

// useField is a short name for a tag or a digest: of two that share one both count
// as used.
func useField(name string) string {
	sum := sha256.Sum256([]byte(name))
	return fmt.Sprintf("%011x", binary.BigEndian.Uint64(sum[:8])>>20)
}
