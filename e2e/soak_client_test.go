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
	// waitBound is the longest time that an answer may take if it doesn't need the store: the
	// time limit of a review's transaction, and some time for a busy machine.
	waitBound = 12 * time.Second
	// Clients wait for an answer for at most patience, or storePatience if the request needs
	// the store. The latter is longer than Purser itself waits for the store.
	patience      = 30 * time.Second
	storePatience = longestRequest + 2*time.Second
)

// troubles records the periods in which requests may fail, since the soak has stopped a
// replica or made the store fail.
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

// met returns whether there was trouble at any time between from and to, the beginning and end
// of a request.
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

// replica is one of the soak's registries; the soak kills it and starts it again.
type replica struct {
	name     string
	reg      *registry
	troubles troubles

	mu   sync.Mutex
	api  *api // nil while it is down
	life int  // counts its starts
}

// endpoint is a replica between one start and its next end; life counts the replica's starts.
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

// call is one request, with the answers that are correct for it.
type call struct {
	request
	also   []int  // statuses besides want that are an answer
	stored bool   // the request needs the store
	about  string // the request's object, if the path doesn't name it
}

// ask sends a request to a replica. If there was trouble and no answer came, or an answer that
// reports the trouble, it returns status 0: then nobody knows whether the request was
// executed. Any other failure ends the soak.
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
	// If a request reaches its time limit while the store hangs, Purser answers with an error
	// about the request's body.
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

// any returns a random replica that is running. If none is, it waits for one; it returns false
// if the traffic ends before.
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

// anywhere sends a request to a random replica that is running.
func (w *worker) anywhere(c call) (res *answer, status int) {
	at, ok := w.any()
	if !ok {
		return nil, 0
	}
	return w.ask(at, c)
}

func manifestPath(repo, reference string) string { return "/v2/" + repo + "/manifests/" + reference }
func blobPath(repo, digest string) string        { return "/v2/" + repo + "/blobs/" + digest }

// event is one request with its result, an entry of the trace.
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
