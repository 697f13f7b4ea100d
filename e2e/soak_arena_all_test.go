//go:build all

package e2e

import (
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
)

const arenaRepo = "contested/app"

// arena is a repository whose tags several workers write at the same time ("contested tags").
// So nobody knows to which manifest such a tag points. The soak only knows that it must be one
// of those that were put under the tag, and that it can be pulled completely while no worker
// writes.
type arena struct {
	mu      sync.Mutex
	writes  int       // writes that were begun so far
	running int       // writes that are under way
	ended   time.Time // when the last write ended
	put     map[string]map[digest.Digest]*image
}

// unknownFor is how long the registry may go on executing a write that got no answer. Until
// this time is over, the arena counts the write as running.
const unknownFor = 15 * time.Second

func newArena() *arena { return &arena{put: map[string]map[digest.Digest]*image{}} }

func (a *arena) begin(tag string, m *image) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.writes++
	a.running++
	if m != nil {
		if a.put[tag] == nil {
			a.put[tag] = map[digest.Digest]*image{}
		}
		a.put[tag][m.Digest] = m
	}
}

func (a *arena) end(known bool) {
	over := func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.running--
		a.ended = time.Now()
	}
	if known {
		over()
	} else {
		time.AfterFunc(unknownFor, over)
	}
}

// still returns the number of writes that were begun so far. `still` is true if no write is
// running and the last one ended so long ago that no replica answers with an older state.
func (a *arena) still() (writes int, still bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.writes, a.running == 0 && time.Since(a.ended) > stale
}

func (a *arena) image(tag string, d digest.Digest) *image {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.put[tag][d]
}

// Workers write contested tags in periods of length `bout`: only in the first part of each
// period, of length `brawling`, so that the tags can be checked in the rest.
const (
	bout     = 8 * time.Second
	brawling = 3 * time.Second
)

// brawl writes contested tags in the first part of each period of length `bout`, and checks
// the tags in the rest of the period, until the traffic ends.
func (w *worker) brawl() {
	began := time.Now()
	for w.traffic.Err() == nil {
		if time.Since(began)%bout < brawling {
			w.strike(fmt.Sprintf("c%d", w.rng.IntN(3)))
		} else {
			w.checkArena()
			w.sleep(time.Duration(w.rng.IntN(50)) * time.Millisecond)
		}
	}
}

func (w *worker) strike(tag string) {
	m := w.universe.images[w.rng.IntN(len(w.universe.images))]
	path, also := "", []int{http.StatusNotFound}
	switch w.rng.IntN(8) {
	default:
		known := true
		w.arena.begin(tag, m)
		defer func() { w.arena.end(known) }()
		_, became := w.put(arenaRepo, tag, m, nil)
		known = became != putUnknown
		return
	case 0:
		path = manifestPath(arenaRepo, tag)
	case 1:
		path, also = manifestPath(arenaRepo, m.Digest.String()), append(also, http.StatusConflict)
	case 2:
		path, also = blobPath(arenaRepo, w.universe.blob(w.rng).Digest.String()), append(also, http.StatusConflict)
	}
	w.arena.begin(tag, nil)
	_, status := w.anywhere(call{request: request{method: "DELETE", path: path, want: http.StatusAccepted}, also: also})
	w.arena.end(status != 0)
}

// checkArena pulls each contested tag that exists. If a pull fails, but some contested tag was
// written meanwhile, the failure doesn't count.
func (w *worker) checkArena() {
	for i := range 3 {
		tag := fmt.Sprintf("c%d", i)
		before, still := w.arena.still()
		at, ok := w.any()
		if !still || !ok {
			return
		}
		what := w.checkContested(at, tag)
		if after, _ := w.arena.still(); what != "" && after == before {
			w.violate([]string{manifestPath(arenaRepo, tag), what}, "%s:%s can't be pulled whole while nobody writes it: %s",
				arenaRepo, tag, what)
		}
		w.stats.count("contested checked")
	}
}

// checkContested pulls the image to which a contested tag points. It returns the digest of the
// content that is missing, or "" if nothing is. A tag may also not exist.
func (w *worker) checkContested(at endpoint, tag string) (what string) {
	res, status := w.ask(at, call{request: request{method: "GET", path: manifestPath(arenaRepo, tag),
		header: map[string]string{"Accept": manifestTypes}, want: http.StatusOK}, also: []int{http.StatusNotFound}})
	if status != http.StatusOK {
		return ""
	}
	d := digest.FromBytes(res.body)
	m := w.arena.image(tag, d)
	if m == nil {
		w.violate([]string{manifestPath(arenaRepo, tag), d.String()}, "%s:%s is %s, which nobody has put there", arenaRepo, tag, d)
		return ""
	}
	what, _ = w.pull(at, arenaRepo, m)
	return what
}
