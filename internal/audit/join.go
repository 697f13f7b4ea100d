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
	// maxRequests is of how many requests an entry has the times.
	maxRequests = 1000
)

// joinKey is what requests have in common that are one entry.
type joinKey struct {
	kind                              Kind
	actor, address, agent, repository string
	namespace, tag                    string
	repositoryID                      int64
	digest                            oci.Digest
	countedBy                         string
	redisSeq                          int64
}

// Request is one of those that an entry is of: when it came, and by which of the client's
// ports, which tell together to which HEAD a pull by digest belongs.
type Request struct {
	Time time.Time
	Port int
}

// waiting is an entry that waits to be written, for one request or several.
type waiting struct {
	Entry         // its time and its request are the last one's
	key   joinKey // zero: it takes no more
	first time.Time
	all   []Request // where each of them matters, and there are several
}

// timed says whether an entry keeps the time and port of each of its requests: a HEAD of a
// tag does, and a pull by digest, which may belong to such a HEAD.
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
		countedBy: e.CountedBy, redisSeq: e.RedisSeq,
	}
}

// join adds a request, unless it came too long after the first or before the last.
func (w *waiting) join(e *Entry, span time.Duration) bool {
	timed := w.timed()
	if timed && len(w.all) >= maxRequests {
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
		if w.all == nil {
			w.all = append(make([]Request, 0, 8), Request{w.Time, w.Port})
		}
		w.all = append(w.all, Request{e.Time, e.Port})
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
	if w.all != nil {
		slices.SortStableFunc(w.all, func(a, b Request) int { return a.Time.Compare(b.Time) })
		w.Port, w.later, w.all = w.all[0].Port, EncodeRequests(w.all), nil
	}
}

var errRequests = errors.New("the times of its requests can't be read")

// Requests are the first request and those that are encoded behind it.
func Requests(first Request, later []byte) ([]Request, error) {
	all := append(make([]Request, 0, 1+len(later)/5), first)
	for len(later) > 0 {
		step, n := binary.Uvarint(later)
		if n <= 0 || step > uint64(MaxSpan.Microseconds()) || len(all) > maxRequests {
			return nil, errRequests
		}
		port, m := binary.Uvarint(later[n:])
		if m <= 0 || port > 65535 {
			return nil, errRequests
		}
		later = later[n+m:]
		all = append(all, Request{all[len(all)-1].Time.Add(time.Duration(step) * time.Microsecond), int(port)})
	}
	return all, nil
}

// EncodeRequests is what Requests reads: of each request behind the first the microseconds
// since the one before, and the port. They are in the order of their times. Nil: there are
// none.
func EncodeRequests(all []Request) []byte {
	if len(all) <= 1 {
		return nil
	}
	b := make([]byte, 0, 5*len(all))
	for i := 1; i < len(all); i++ {
		b = binary.AppendUvarint(b, uint64(all[i].Time.UnixMicro()-all[i-1].Time.UnixMicro()))
		b = binary.AppendUvarint(b, uint64(all[i].Port))
	}
	return b
}
