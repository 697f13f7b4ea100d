package redispulls

import (
	"context"
	"encoding/hex"
	"time"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/oci"
)

const (
	// maxSameHeads bounds the number of HEADs that Redis keeps of one client for one
	// manifest.
	maxSameHeads = 1000
	// Redis keeps a HEAD for headMargin longer than a GET by digest can be joined with it,
	// since the recorder may be late to send the search for the GET's HEAD.
	headMargin = time.Minute
)

// Answer says what became of one of the calls that a method has sent to Redis together.
type Answer struct {
	Outcome Outcome
	Err     error // why Outcome isn't Answered
	// Key is the counter to which Client.Add has added pulls, or was to add them.
	Key string
	// Seq is the sequence number that Client.Add has given the pulls. 0: it isn't known.
	Seq int64
	// Tag is the tag of the HEAD that Client.TakeHeads has found. "": there is none.
	Tag string
}

// Pulls are pulls of one manifest by one tag or, if Tag is "", by digest. They all happened on the
// day of the last one.
type Pulls struct {
	Repository int64
	Tag        string
	Digest     oci.Digest
	N          int
	Last       time.Time
}

// Add adds pulls to their counters, in one round trip, and returns an answer for each element of
// `list`. Pulls that Redis hasn't answered may be counted or not, so they mustn't be added again.
func (r *Client) Add(ctx context.Context, list []Pulls) []Answer {
	calls := make([]*call, len(list))
	for i, p := range list {
		method := "tag"
		if p.Tag == "" {
			method = "digest"
		}
		calls[i] = &call{
			script: recordScript, keys: []string{counterKey(p.Repository, p.Tag, p.Digest), uncountedKey(p.Repository)},
			args: []any{p.N, redisTime(p.Last), p.Repository, p.Tag, p.Digest.String(), method},
		}
	}
	r.run(ctx, calls)
	answers := make([]Answer, len(list))
	for i, c := range calls {
		a := &answers[i]
		a.Key = c.keys[0]
		if a.Outcome, a.Err = c.outcome(); a.Outcome == Answered {
			a.Seq, _ = c.cmd.Int64()
		}
	}
	return answers
}

// Request is a HEAD by tag, or a GET by digest that may belong to one. Name is its name in Redis: no
// other request of any process has it.
type Request struct {
	Name string
	audit.Entry
}

// StoreHeads stores HEADs by tag for as long as GETs by digest may be joined with them, which
// is `within`. A HEAD that is stored already stays as it is. It returns an answer for each HEAD.
func (r *Client) StoreHeads(ctx context.Context, heads []Request, within time.Duration) []Answer {
	calls := make([]*call, len(heads))
	for i, h := range heads {
		calls[i] = &call{script: headScript, keys: []string{headKey(h.Entry)}, args: []any{
			h.Name, h.Time.UnixMicro(), h.Port, h.Tag, (within + headMargin).Microseconds(), maxSameHeads, int((within + headMargin).Seconds()) + 1,
		}}
	}
	r.run(ctx, calls)
	answers := make([]Answer, len(heads))
	for i, c := range calls {
		answers[i].Outcome, answers[i].Err = c.outcome()
	}
	return answers
}

// TakeHeads finds the HEAD by tag that belongs to each of the GETs by digest, at most `within`
// before it, and marks the HEAD as used by this GET. It returns an answer for each GET. A repeated
// call gets the same answer.
func (r *Client) TakeHeads(ctx context.Context, gets []Request, within time.Duration) []Answer {
	calls := make([]*call, len(gets))
	for i, g := range gets {
		calls[i] = &call{script: takeScript, keys: []string{headKey(g.Entry)}, args: []any{
			g.Name, g.Time.UnixMicro(), g.Port, within.Microseconds(),
		}}
	}
	r.run(ctx, calls)
	answers := make([]Answer, len(gets))
	for i, c := range calls {
		a := &answers[i]
		if a.Outcome, a.Err = c.outcome(); a.Outcome == Answered {
			a.Tag, _ = c.cmd.Text()
		}
	}
	return answers
}

// headKey returns the key of the HEADs of an entry's client for its manifest.
func headKey(e audit.Entry) string {
	client := e.Client()
	return headPrefix + hex.EncodeToString(client[:])
}
