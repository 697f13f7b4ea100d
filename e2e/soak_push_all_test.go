//go:build all

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"time"
)

// worker is a goroutine of the soak.
type worker struct {
	*soak
	name string
	rng  *rand.Rand
}

// outcome is the outcome of a put.
type outcome int

const (
	putNot     outcome = iota // the manifest wasn't stored
	putUnknown                // whether it was stored isn't known
	putDone
)

// promised is a promise of existence: the registry has told a client that the blob b exists,
// and must not delete it before `until`.
type promised struct {
	b     *blobContent
	until time.Time
}

// put pushes the blobs and children of an image that the repository doesn't have, and then
// puts the image's manifest under `reference`. If the registry refuses the manifest because
// garbage collection has deleted a blob or child in between, put begins again. Just before it
// sends the manifest for the first time, it calls `before`. It returns the replica that got
// the manifest, and the outcome.
func (w *worker) put(repo, reference string, m *image, before func()) (by endpoint, o outcome) {
	for range 60 {
		told, ok := w.ensure(repo, m)
		if !ok {
			return by, putNot
		}
		if repo != arenaRepo {
			w.dawdle(m, told)
		}
		if by, ok = w.any(); !ok {
			return by, putNot
		}
		if before != nil {
			before()
			before = nil
		}
		_, status := w.ask(by, call{request: request{method: "PUT", path: manifestPath(repo, reference), body: m.text,
			header: map[string]string{"Content-Type": m.MediaType}, want: http.StatusCreated},
			also: []int{http.StatusBadRequest}, about: m.Digest.String()})
		now := time.Now()
		switch status {
		case http.StatusCreated:
			w.stats.count("put")
			return by, putDone
		case 0:
			return by, putUnknown
		}
		w.checkPromises(repo, m, told, now)
		w.stats.count("put again")
	}
	w.stats.count("starved")
	return by, putNot
}

// dawdle sometimes waits for a random time before the put of a manifest, so that promises of
// existence are used late. It stops waiting a second before the earliest end of the promises
// for the manifest's blobs.
func (w *worker) dawdle(m *image, told []promised) {
	if w.promise == 0 || len(m.children) > 0 || w.rng.IntN(2) == 0 {
		return
	}
	least := w.promise
	for _, p := range told {
		least = min(least, time.Until(p.until))
	}
	if least > time.Second {
		w.stats.count("put late")
		w.sleep(time.Duration(w.rng.Int64N(int64(least - time.Second))))
	}
}

// checkPromises is called when the registry has refused the put of a manifest. It fails the
// soak if the promises of existence for all blobs of the manifest were still valid then.
func (w *worker) checkPromises(repo string, m *image, told []promised, now time.Time) {
	if w.promise == 0 || len(m.children) > 0 || repo == arenaRepo {
		return
	}
	words := []string{m.Digest.String()}
	for _, p := range told {
		if now.After(p.until) || w.mayBeUnlinked(repo, p.b) {
			return
		}
		words = append(words, p.b.Digest.String())
	}
	w.violate(words, "%s was refused in %s, although all of its blobs were said to be there", m.Digest, repo)
}

// ensure pushes those blobs and children of an image that the repository doesn't have. It
// returns the promises of existence for the image's blobs, or false if it gave up.
func (w *worker) ensure(repo string, m *image) (told []promised, ok bool) {
	for _, b := range m.blobs {
		p, ok := w.ensureBlob(repo, b)
		if !ok {
			return nil, false
		}
		told = append(told, p)
	}
	for _, child := range m.children {
		if _, o := w.put(repo, child.Digest.String(), child, nil); o != putDone {
			return nil, false
		}
	}
	return told, true
}

// ensureBlob makes sure that a repository has a blob: by chance it asks for the blob by HEAD,
// mounts it, or uploads it. It returns the registry's promise of existence, or false if it
// gave up.
func (w *worker) ensureBlob(repo string, b *blobContent) (promised, bool) {
	for range 20 {
		asked := time.Now()
		if w.rng.IntN(2) == 0 {
			_, status := w.anywhere(call{request: request{method: "HEAD", path: blobPath(repo, b.Digest.String()),
				want: http.StatusOK}, also: []int{http.StatusNotFound}})
			if status == http.StatusOK {
				w.stats.count("known")
				// The registry may answer without renewing an earlier promise as long as half
				// of that promise is left. So this answer promises only that the blob stays
				// for half of the usual time.
				return promised{b, asked.Add(w.promise / 2)}, true
			}
		}
		if w.rng.IntN(4) == 0 && w.mount(repo, b) || w.upload(repo, b) {
			return promised{b, asked.Add(w.promise)}, true
		}
		if w.traffic.Err() != nil {
			break
		}
	}
	return promised{}, false
}

// mount asks the registry to mount a blob from another repository, which may or may not have
// it. It returns whether the registry did.
func (w *worker) mount(repo string, b *blobContent) bool {
	from := arenaRepo
	for range 20 {
		if r := w.owners[w.rng.IntN(len(w.owners))].some(w.rng); r.uses(b.Digest) {
			from = r.name
			break
		}
	}
	res, status := w.anywhere(call{request: request{method: "POST", want: http.StatusCreated,
		path: "/v2/" + repo + "/blobs/uploads/?mount=" + b.Digest.String() + "&from=" + from}, also: []int{http.StatusAccepted}})
	if status == http.StatusAccepted {
		w.cancel(res.header.Get("Location"), b)
	}
	if status == http.StatusCreated {
		w.stats.count("mounted")
	}
	return status == http.StatusCreated
}

func (w *worker) cancel(location string, b *blobContent) {
	w.anywhere(call{request: request{method: "DELETE", path: location, want: http.StatusNoContent},
		also: []int{http.StatusNotFound}, about: b.Digest.String()})
}

// gone has the statuses with which the registry may answer a request for an upload that it has
// ended. The worker then begins another upload.
var gone = []int{http.StatusNotFound, http.StatusRequestedRangeNotSatisfiable}

// upload pushes a blob in one of the ways that the specification allows, at random. It returns
// whether the registry has acknowledged the blob.
func (w *worker) upload(repo string, b *blobContent) bool {
	start := "/v2/" + repo + "/blobs/uploads/"
	if w.rng.IntN(4) == 0 {
		_, status := w.anywhere(call{request: request{method: "POST", path: start + "?digest=" + b.Digest.String(),
			body: b.bytes, want: http.StatusCreated}, also: gone, stored: true})
		return status == http.StatusCreated
	}
	u, ok := w.start(start, b)
	rest := b.bytes
	for chunks := w.rng.IntN(4); ok && chunks > 1; chunks-- {
		n := w.rng.IntN(len(rest) + 1)
		ok = n == 0 || w.chunk(u, rest[:n], b)
		rest = rest[n:]
	}
	if ok {
		_, status := w.anywhere(call{request: request{method: "PUT", path: u.finishing(b.Digest), body: rest,
			want: http.StatusCreated}, also: gone, stored: true, about: repo})
		if ok = status == http.StatusCreated; ok {
			w.stats.count("uploaded")
			return true
		}
	}
	if u != nil && w.rng.IntN(2) == 0 {
		w.cancel(u.location, b)
	}
	return false
}

func (w *worker) start(path string, b *blobContent) (*upload, bool) {
	res, status := w.anywhere(call{request: request{method: "POST", path: path, want: http.StatusAccepted}, about: b.Digest.String()})
	if status == 0 {
		return nil, false
	}
	return &upload{location: res.header.Get("Location")}, true
}

// chunk appends to an upload.
func (w *worker) chunk(u *upload, p []byte, b *blobContent) bool {
	res, status := w.anywhere(call{request: request{method: "PATCH", path: u.location, body: p, want: http.StatusAccepted,
		header: map[string]string{"Content-Range": fmt.Sprintf("%d-%d", u.offset, u.offset+int64(len(p))-1)}},
		also: gone, stored: true, about: b.Digest.String()})
	if status != http.StatusAccepted {
		return false
	}
	if err := u.follow(res); err != nil {
		w.violate([]string{u.location}, "%v", err)
	}
	return true
}

// dangle leaves garbage behind: a blob for which it pushes no manifest, or an upload that the
// worker cancels, abandons, or leaves with a broken connection.
func (w *worker) dangle(repo string) {
	b := w.universe.blob(w.rng)
	how := w.rng.IntN(5)
	if how == 0 {
		w.upload(repo, b)
		return
	}
	if how == 1 {
		w.mount(repo, b)
		return
	}
	u, ok := w.start("/v2/"+repo+"/blobs/uploads/", b)
	if !ok || !w.chunk(u, b.bytes[:1+w.rng.IntN(len(b.bytes))], b) {
		return
	}
	switch how {
	case 2:
		w.cancel(u.location, b)
	case 3:
		w.breakOff(u, b)
	}
	w.stats.count("abandoned")
}

// breakOff breaks the connection in the middle of a PATCH request, and never continues the
// upload.
func (w *worker) breakOff(u *upload, b *blobContent) {
	at, ok := w.any()
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	broken := io.MultiReader(bytes.NewReader(b.bytes[:len(b.bytes)/2]), failing{errors.New("broken off")})
	from := time.Now()
	_, err := at.api.do(ctx, request{method: "PATCH", path: u.location, stream: broken, want: http.StatusAccepted})
	w.trace.add(event{from, time.Since(from), w.name, at, "PATCH", u.location, "broken off: " + b.Digest.String(), 0, err})
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }
