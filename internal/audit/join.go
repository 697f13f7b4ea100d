package audit

import (
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"github.com/purser-registry/purser/internal/oci"
)

const (
	// DefaultJoin is the default of RecorderOptions.Join: pulls that come up to this long
	// after an entry's first pull are joined into that entry.
	DefaultJoin = time.Second
	// MaxSpan bounds the time between the first and the last request of an entry that keeps
	// the time of each request (an entry of HEADs or of pulls by digest), even while the
	// buffer is full.
	MaxSpan = time.Minute
	// maxRequests bounds the number of requests of an entry that keeps the time of each
	// request.
	maxRequests = 1000
)

// joinKey has the fields in which requests must be equal to be joined into one entry.
type joinKey struct {
	kind                              Kind
	actor, address, agent, repository string
	namespace, tag                    string
	repositoryID                      int64
	digest                            oci.Digest
	countedBy                         string
	redisSeq                          int64
}

// Request is the time and the client's port of one request of an entry. The statistics use
// both to find the HEAD request to which a pull by digest belongs.
type Request struct {
	Time time.Time
	Port int
}

// waiting is an entry in the recorder's buffer. It stands for one request or several.
type waiting struct {
	Entry         // its Time and RequestID are those of the last request
	key   joinKey // zero: it takes no more requests
	first time.Time
	all   []Request // all requests, if there are several and the entry is timed
}

// timed says whether an entry keeps the time and port of each request for which it stands.
// Entries of HEADs of tags and of pulls by digest do, because the statistics match such
// HEADs and pulls with each other.
func (e *Entry) timed() bool { return e.Kind == headOfTag || e.Kind == PullRepo && e.Tag == "" }

// sameDay says whether both times are on the same day, in UTC.
func sameDay(a, b time.Time) bool {
	const day = 24 * time.Hour
	return a.UTC().Truncate(day).Equal(b.UTC().Truncate(day))
}

// joinable says whether an entry may be joined with others. It may not if it has a field
// that joinKey doesn't compare (Detail), or already stands for several pulls.
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

// join adds the request `e` to the waiting entry `w` and returns true. It returns false,
// and changes nothing, if the first and the last request of w would then be further apart
// than `span`, or if w already keeps the times of maxRequests requests.
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
	if e.Came.Before(w.Came) {
		w.Came = e.Came
	}
	w.Pulls, w.first, w.Time = w.Pulls+1, first, last
	return true
}

// freeze makes the entry final: it accepts no further requests from now on. It sets the
// fields FirstTime, Port and later, which the table has for joined requests.
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

// Requests returns all requests of an entry, in the order of their times. `first` is the
// first request; `later` is the output of EncodeRequests, which has the others. It returns
// an error if later can't be decoded.
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

// EncodeRequests encodes the requests in `all`, which must be sorted by time, without the
// first one. For each request it writes the microseconds since the request before it, and
// the port. The function Requests decodes the result. For fewer than two requests the
// result is nil.
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
