package audit

import (
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"github.com/purser-registry/purser/internal/oci"
)

const (
	// DefaultJoin is how long after the first of them pulls are one entry.
	DefaultJoin = time.Second
	// MaxSpan bounds the time between the first and the last of the requests whose times an
	// entry has, also while the buffer is full.
	MaxSpan = time.Minute
	// maxTimes is of how many requests an entry has the times.
	maxTimes = 1000
)

// joinKey is what requests have in common that are one entry. Requests whose times are
// kept are of one connection too, since it tells which HEAD a pull belongs to.
type joinKey struct {
	kind                              Kind
	actor, address, agent, repository string
	namespace, tag                    string
	repositoryID                      int64
	digest                            oci.Digest
	countedBy                         string
	redisSeq                          int64
	port                              int
}

// waiting is an entry that waits to be written, for one request or several.
type waiting struct {
	Entry         // its time and its request are the last one's
	key   joinKey // zero: it takes no more
	first time.Time
	times []time.Time // of all requests, where they matter
}

// timed says whether an entry keeps the time of each of its requests: a HEAD of a tag, and
// a pull by digest, which may belong to one.
func (e *Entry) timed() bool { return e.Kind == headOfTag || e.Kind == PullRepo && e.Tag == "" }

// joinable says whether an entry may be joined with others: it says nothing beside what
// the key has.
func (e *Entry) joinable() bool {
	return (e.Kind == PullRepo || e.Kind == headOfTag) && e.Detail == nil && e.Pulls <= 1
}

func (e *Entry) joinKey() joinKey {
	return joinKey{
		kind: e.Kind, actor: e.Actor, address: e.Address, agent: e.UserAgent, repository: e.Repository,
		namespace: e.Namespace, tag: e.Tag, repositoryID: e.RepositoryID, digest: e.Digest,
		countedBy: e.CountedBy, redisSeq: e.RedisSeq, port: e.Port,
	}
}

// join adds a request, unless it came too long after the first or before the last.
func (w *waiting) join(e *Entry, span time.Duration) bool {
	timed := w.timed()
	if timed && len(w.times) >= maxTimes {
		return false
	}
	if timed {
		span = min(span, MaxSpan)
	}
	first, last := w.first, w.Time
	if e.Time.Before(first) {
		first = e.Time
	}
	if e.Time.After(last) {
		last = e.Time
	}
	if last.Sub(first) > span {
		return false
	}
	if timed {
		if w.times == nil {
			w.times = append(make([]time.Time, 0, 8), w.Time)
		}
		w.times = append(w.times, e.Time)
	}
	if !e.Time.Before(w.Time) {
		w.RequestID = e.RequestID
	}
	w.Pulls, w.first, w.Time = w.Pulls+1, first, last
	return true
}

// freeze ends the joining: the entry is what it will be in the log.
func (w *waiting) freeze() {
	w.key = joinKey{}
	if w.Pulls > 1 {
		w.FirstTime = w.first
	}
	if w.times != nil {
		slices.SortFunc(w.times, time.Time.Compare)
		w.later, w.times = encodeTimes(w.times), nil
	}
}

// encodeTimes are the times behind the first, each as the microseconds since the one
// before. They are in their order.
func encodeTimes(times []time.Time) []byte {
	b := make([]byte, 0, 2*len(times))
	for i := 1; i < len(times); i++ {
		b = binary.AppendUvarint(b, uint64(times[i].UnixMicro()-times[i-1].UnixMicro()))
	}
	return b
}

var errTimes = errors.New("the times of its requests can't be read")

// Times are the first time and those that are encoded behind it.
func Times(first time.Time, later []byte) ([]time.Time, error) {
	times := append(make([]time.Time, 0, 1+len(later)/2), first)
	for len(later) > 0 {
		step, n := binary.Uvarint(later)
		if n <= 0 || step > uint64(MaxSpan.Microseconds()) || len(times) > maxTimes {
			return nil, errTimes
		}
		later = later[n:]
		times = append(times, times[len(times)-1].Add(time.Duration(step)*time.Microsecond))
	}
	return times, nil
}

// EncodeTimes is what Times reads: the times behind the first, nil where there are none.
func EncodeTimes(times []time.Time) []byte {
	if len(times) <= 1 {
		return nil
	}
	return encodeTimes(times)
}
