//go:build all

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// waitBound is the longest time that an answer may take if the request doesn't need the
	// store. It is the sum of two times: the time limit of a review's transaction, for whose
	// locks the request may have to wait, and some time because the machine is busy.
	waitBound = 12 * time.Second
	// Clients wait for an answer for at most `patience`, or for `storePatience` if the request
	// needs the store. storePatience is longer than Purser's own time limit for a request.
	patience      = 30 * time.Second
	storePatience = longestRequest + 2*time.Second
)

// troubles records the periods in which requests may fail, because the soak has stopped a
// replica or makes the store fail.
type troubles struct {
	mu   sync.Mutex
	list []window
}

type window struct{ from, to time.Time } // to is zero while the trouble lasts

// begin starts a period of trouble, unless one is running.
func (t *troubles) begin() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := len(t.list); n == 0 || !t.list[n-1].to.IsZero() {
		t.list = append(t.list, window{from: time.Now()})
	}
}

func (t *troubles) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := len(t.list); n > 0 && t.list[n-1].to.IsZero() {
		t.list[n-1].to = time.Now()
	}
}

// met returns whether there was trouble at any time during a request that lasted from `from`
// to `to`.
func (t *troubles) met(from, to time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, w := range slices.Backward(t.list) {
		if !w.from.After(to) && (w.to.IsZero() || !w.to.Before(from)) {
			return true
		}
	}
	return false
}

// replica is one of the soak's registries, which the soak ends and starts again at random
// times.
type replica struct {
	name     string
	reg      *registry
	troubles troubles

	mu   sync.Mutex
	api  *api // nil while it is down
	life int  // counts its starts
}

// endpoint is a replica from one start of it to its next end. `life` is the number of starts
// so far, so it tells endpoints of the same replica apart.
type endpoint struct {
	*replica
	api  *api
	life int
}

func (r *replica) reach() (endpoint, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return endpoint{r, r.api, r.life}, r.api != nil
}

// up records that the replica has started, so that workers may send requests to it.
func (r *replica) up() {
	r.mu.Lock()
	r.api, r.life = newAPI(r.reg.t, r.reg.URL()), r.life+1
	r.mu.Unlock()
	r.troubles.end()
}

// down is called before a replica is ended, so that workers send no more requests to it.
func (r *replica) down() {
	r.troubles.begin()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.api = nil
}

// call is one request of a worker, with the statuses that are correct for its answer.
type call struct {
	request
	also   []int  // statuses besides want that are an answer
	stored bool   // the request needs the store
	about  string // the request's object, if the path doesn't name it
}

// ask sends a request to a replica, and returns the answer and its status if the status is one
// of those that are correct for the call. If there was trouble, and the request got no answer
// or one that reports the trouble, ask returns status 0: then nobody knows whether the request
// was executed. Any other result ends the soak.
func (w *worker) ask(at endpoint, c call) (res *answer, status int) {
	wait := patience
	if c.stored {
		wait = storePatience
	}
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	from := time.Now()
	res, err := at.api.do(ctx, c.request)
	to := time.Now()
	var refused *statusError
	switch {
	case err == nil:
		status = c.want
	case errors.As(err, &refused):
		status, res = refused.status, &answer{refused.header, []byte(refused.body)}
	}
	w.trace.add(event{from, to.Sub(from), w.name, at, c.method, c.path, c.about, status, err})
	now, _ := at.reach()
	inTrouble := at.life != now.life || at.troubles.met(from, to) || c.stored && w.store.troubles().met(from, to)
	if status == c.want || slices.Contains(c.also, status) {
		w.stats.took(c, to.Sub(from))
		if slices.Equal(c.also, gone) && status != c.want {
			w.stats.count("upload gone")
		}
		if to.Sub(from) > waitBound && !inTrouble {
			w.violate([]string{c.path}, "%s %s took %v", c.method, c.path, to.Sub(from))
		}
		return res, status
	}
	// If the store hangs while Purser writes a body to it, the request may reach its time
	// limit. Then Purser answers with a 400 about the request's body.
	late := c.stored && status == http.StatusBadRequest && to.Sub(from) >= longestRequest
	if inTrouble && (status == 0 || status >= 500 || late) {
		w.stats.count("no answer")
		time.Sleep(10 * time.Millisecond)
		return nil, 0
	}
	if refused == nil || status >= 500 {
		w.violate([]string{c.path, c.about}, "%s failed, though %s was up and the store in order, after %v: %v", w.name, at.name, to.Sub(from), err)
	} else {
		w.violate([]string{c.path, c.about}, "%s got an answer that can't be: %v", w.name, err)
	}
	return nil, 0
}

// any returns a random replica that is running. If none is running, it waits for one. It
// returns false if the traffic ends first.
func (w *worker) any() (endpoint, bool) {
	for w.traffic.Err() == nil {
		i := w.rng.IntN(len(w.replicas))
		for range w.replicas {
			if at, ok := w.replicas[i].reach(); ok {
				return at, true
			}
			i = (i + 1) % len(w.replicas)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return endpoint{}, false
}

// anywhere sends a request to a random replica that is running. If the traffic ends while no
// replica is running, it sends nothing and returns status 0.
func (w *worker) anywhere(c call) (res *answer, status int) {
	at, ok := w.any()
	if !ok {
		return nil, 0
	}
	return w.ask(at, c)
}

func manifestPath(repo, reference string) string { return "/v2/" + repo + "/manifests/" + reference }
func blobPath(repo, digest string) string        { return "/v2/" + repo + "/blobs/" + digest }

// event is one request of a worker with its result. The trace keeps the latest events.
type event struct {
	at     time.Time
	took   time.Duration
	who    string
	target endpoint
	method string
	path   string
	about  string
	status int
	err    error
}

func (e event) String() string {
	outcome := fmt.Sprint(e.status)
	if e.err != nil && e.status == 0 {
		outcome = e.err.Error()
	} else if e.status >= 400 && e.status != http.StatusNotFound {
		outcome = e.err.Error()
	}
	return fmt.Sprintf("%s +%-8v %-12s %s/%d %-6s %s %s: %.300s", e.at.Format("15:04:05.000"), e.took.Round(time.Millisecond/10),
		e.who, e.target.name, e.target.life, e.method, e.path, e.about, outcome)
}

// trace remembers the latest requests.
type trace struct {
	mu   sync.Mutex
	ring []event
	next int
}

const traced = 200_000

func (t *trace) add(e event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.ring) < traced {
		t.ring = append(t.ring, e)
		return
	}
	t.ring[t.next] = e
	t.next = (t.next + 1) % traced
}

// about returns the last requests, at most `most`, that mention one of the words, oldest
// first.
func (t *trace) about(words []string, most int) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var found []event
	for _, e := range slices.Concat(t.ring[t.next:], t.ring[:t.next]) {
		mentions := func(word string) bool {
			return word != "" && (strings.Contains(e.path, word) || strings.Contains(e.about, word))
		}
		if slices.ContainsFunc(words, mentions) {
			found = append(found, e)
		}
	}
	slices.SortStableFunc(found, func(a, b event) int { return a.at.Compare(b.at) })
	var text strings.Builder
	for _, e := range found[max(0, len(found)-most):] {
		fmt.Fprintln(&text, "  ", e)
	}
	return text.String()
}
