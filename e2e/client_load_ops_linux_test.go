//go:build all

package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	gcr "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// clientLoad is a number of workers that use a registry as people do, with go-containerregistry
// (the library of crane) and regctl: each worker pushes images to a repository of its own, moves
// the tag latest, mounts layers into another repository, lists tags, deletes tags and manifests,
// and pulls what some worker has pushed. It records what the registry has acknowledged.
type clientLoad struct {
	t       testing.TB
	s       *proxyScene
	wire    *wire
	regctl  *client
	repeats bool // an operation that fails is tried again, as a person or a pipeline does
	stop    context.CancelFunc
	wg      sync.WaitGroup

	mu       sync.Mutex
	tags     map[string]string // REPOSITORY:TAG → digest; "" for a deleted tag
	done     map[string]int    // operations that succeeded, by name
	failures []string
	repeated int
	longest  time.Duration // the operation that took longest
}

// startClientLoad starts the workers.
func startClientLoad(s *proxyScene, prefix string, workers int, repeats bool) *clientLoad {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	l := &clientLoad{
		t: s.t, s: s, wire: &wire{next: s.API().client.Transport, counts: map[int]int{}}, repeats: repeats, stop: cancel,
		regctl: toolClient(s.t, "regctl", "--host", "reg="+s.addr+",tls=insecure"),
		tags:   map[string]string{}, done: map[string]int{},
	}
	for i := range workers {
		l.wg.Go(func() { l.work(ctx, fmt.Sprintf("%s/worker%d", prefix, i)) })
	}
	s.t.Cleanup(l.Stop)
	return l
}

// Stop lets the workers end what they have begun, and waits for them.
func (l *clientLoad) Stop() {
	l.stop()
	l.wg.Wait()
}

// work is one worker. A layer that all its images share is mounted into repo-copy.
func (l *clientLoad) work(ctx context.Context, repo string) {
	base := newImage(l.t, 1, 200<<10)
	for i := 0; ctx.Err() == nil; i++ {
		// An operation that has begun goes on to its end when the load is stopped, so that the test knows
		// whether it was acknowledged.
		l.round(context.WithoutCancel(ctx), repo, i, base)
	}
}

func (l *clientLoad) round(ctx context.Context, repo string, i int, base gcr.Image) {
	img, err := l.grow(base, 20<<10+rand.IntN(1<<20))
	if err != nil {
		l.t.Error(err)
		return
	}
	tag := fmt.Sprint("v", i)
	if !l.push(ctx, repo, tag, img) || !l.push(ctx, repo, "latest", img) {
		return
	}
	switch i % 4 {
	case 0:
		l.mount(ctx, repo, tag)
	case 1:
		l.list(ctx, repo)
	case 2:
		l.deleteTag(ctx, repo, fmt.Sprint("v", i-1))
	case 3:
		// This manifest has no other tag, since latest has moved on. Another repository has it too.
		l.deleteManifest(ctx, repo, fmt.Sprint("v", i-3))
		l.copyWithRegctl(ctx, repo, tag)
	}
	l.pull(ctx)
}

// grow returns an image with one more layer, of n random bytes.
func (l *clientLoad) grow(base gcr.Image, n int) (gcr.Image, error) {
	layers, err := newImage(l.t, 1, n).Layers()
	if err != nil {
		return nil, err
	}
	return mutate.AppendLayers(base, layers...)
}

// do runs an operation and counts it. It returns whether the operation succeeded. With l.repeats
// it runs the operation again until it succeeds, for at most a minute.
func (l *clientLoad) do(ctx context.Context, operation string, f func(again bool) error) bool {
	begun := time.Now()
	err := f(false)
	repeated := 0
	for err != nil && l.repeats && time.Since(begun) < time.Minute && ctx.Err() == nil {
		time.Sleep(200 * time.Millisecond)
		repeated++
		err = f(true)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.repeated += repeated
	l.longest = max(l.longest, time.Since(begun))
	if err != nil {
		l.failures = append(l.failures, fmt.Sprintf("%s %s: %v", time.Now().Format("15:04:05.000"), operation, err))
		return false
	}
	l.done[operation]++
	return true
}

// acknowledged records that a tag leads to a digest now, or is gone.
func (l *clientLoad) acknowledged(repo, tag, digest string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tags[repo+":"+tag] = digest
}

// forget removes a tag of which the test doesn't know whether it is there, and returns its digest.
func (l *clientLoad) forget(repo, tag string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	digest := l.tags[repo+":"+tag]
	delete(l.tags, repo+":"+tag)
	return digest
}

func (l *clientLoad) ref(repo, tag string) name.Reference {
	separator := ":"
	if strings.Contains(tag, ":") {
		separator = "@"
	}
	ref, err := name.ParseReference(l.s.addr + "/" + repo + separator + tag)
	if err != nil {
		panic(err)
	}
	return ref
}

func (l *clientLoad) options(ctx context.Context) []remote.Option {
	return []remote.Option{remote.WithContext(ctx), remote.WithTransport(l.wire)}
}

func (l *clientLoad) push(ctx context.Context, repo, tag string, img gcr.Image) bool {
	l.forget(repo, tag)
	ok := l.do(ctx, "push", func(bool) error { return remote.Write(l.ref(repo, tag), img, l.options(ctx)...) })
	if ok {
		l.acknowledged(repo, tag, digestOf(l.t, img))
	}
	return ok
}

// mount copies an image to another repository, whose layers the registry then mounts.
func (l *clientLoad) mount(ctx context.Context, repo, tag string) {
	l.forget(repo+"-copy", tag)
	var digest gcr.Hash
	ok := l.do(ctx, "mount", func(bool) error {
		img, err := remote.Image(l.ref(repo, tag), l.options(ctx)...)
		if err != nil {
			return err
		}
		if digest, err = img.Digest(); err != nil {
			return err
		}
		return remote.Write(l.ref(repo+"-copy", tag), img, l.options(ctx)...)
	})
	if ok {
		l.acknowledged(repo+"-copy", tag, digest.String())
	}
}

func (l *clientLoad) copyWithRegctl(ctx context.Context, repo, tag string) {
	l.forget(repo+"-regctl", tag)
	ok := l.do(ctx, "regctl copy", func(bool) error {
		_, err := l.regctl.Try("", "image", "copy", l.s.Ref(repo, tag), l.s.Ref(repo+"-regctl", tag))
		return err
	})
	if ok {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.tags[repo+"-regctl:"+tag] = l.tags[repo+":"+tag]
	}
}

func (l *clientLoad) list(ctx context.Context, repo string) {
	l.do(ctx, "list", func(bool) error {
		tags, err := remote.List(l.ref(repo, "latest").Context(), l.options(ctx)...)
		if err != nil {
			return err
		}
		if missing := l.missing(repo, tags); len(missing) > 0 {
			return fmt.Errorf("the list of %s's tags lacks %v", repo, missing)
		}
		return nil
	})
}

// missing returns the tags of a repository that must be in a list and aren't.
func (l *clientLoad) missing(repo string, list []string) (missing []string) {
	there := map[string]bool{}
	for _, tag := range list {
		there[tag] = true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for full, digest := range l.tags {
		if r, tag := splitRef(full); r == repo && digest != "" && !there[tag] {
			missing = append(missing, tag)
		}
	}
	return missing
}

func (l *clientLoad) deleteTag(ctx context.Context, repo, tag string) {
	if l.forget(repo, tag) != "" && l.delete(ctx, "delete tag", l.ref(repo, tag)) {
		l.acknowledged(repo, tag, "")
	}
}

func (l *clientLoad) deleteManifest(ctx context.Context, repo, tag string) {
	digest := l.forget(repo, tag)
	if digest != "" && l.delete(ctx, "delete manifest", l.ref(repo, digest)) {
		l.acknowledged(repo, tag, "")
	}
}

// delete deletes what a reference leads to. If the first try had its effect, and only its answer
// was lost, the next one finds nothing, which is as good.
func (l *clientLoad) delete(ctx context.Context, operation string, ref name.Reference) bool {
	return l.do(ctx, operation, func(again bool) error {
		err := remote.Delete(ref, l.options(ctx)...)
		var answer *transport.Error
		if again && errors.As(err, &answer) && answer.StatusCode == http.StatusNotFound {
			return nil
		}
		return err
	})
}

// pull pulls one of the images that any worker has pushed under a tag that isn't deleted later, and
// compares all of its content with the digests.
func (l *clientLoad) pull(ctx context.Context) {
	l.mu.Lock()
	var full, digest string
	for f, d := range l.tags { // in random order
		if repo, _ := splitRef(f); d != "" && strings.Contains(repo, "-") {
			full, digest = f, d
			break
		}
	}
	l.mu.Unlock()
	if full != "" {
		l.do(ctx, "pull", func(bool) error { return l.pullWhole(ctx, full, digest) })
	}
}

func (l *clientLoad) pullWhole(ctx context.Context, full, digest string) error {
	repo, tag := splitRef(full)
	img, err := remote.Image(l.ref(repo, tag), l.options(ctx)...)
	if err != nil {
		return err
	}
	if got, err := img.Digest(); err != nil || got.String() != digest {
		return fmt.Errorf("%s is %v (%v), want %s", full, got, err, digest)
	}
	return validate.Image(img)
}

// operations returns how many operations have succeeded.
func (l *clientLoad) operations() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range l.done {
		n += m
	}
	return n
}

// Await waits until n more operations have succeeded.
func (l *clientLoad) Await(n int) {
	l.t.Helper()
	want := l.operations() + n
	eventually(l.t, 3*time.Minute, func() error {
		if got := l.operations(); got < want {
			return fmt.Errorf("%d operations have succeeded, want %d", got, want)
		}
		return nil
	})
}

// Check stops the load and fails the test for each operation that failed. Then it compares the
// registry with what it has acknowledged.
func (l *clientLoad) Check() {
	l.t.Helper()
	l.Stop()
	for i, failure := range l.failures {
		if i == 10 {
			l.t.Errorf("and %d more", len(l.failures)-i)
			break
		}
		l.t.Error(failure)
	}
	l.t.Logf("operations: %v, tried again: %d, the longest took %v; on the wire: %v", l.done, l.repeated, l.longest, l.wire)
	l.CheckContent()
}

// CheckContent fails the test unless each tag that was acknowledged can be pulled with the right
// content, and each tag whose deletion was acknowledged is gone.
func (l *clientLoad) CheckContent() {
	l.t.Helper()
	var wg sync.WaitGroup
	slots := make(chan struct{}, 4)
	for full, digest := range l.tags {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			err := l.pullWhole(context.WithoutCancel(l.t.Context()), full, digest)
			var answer *transport.Error
			switch gone := errors.As(err, &answer) && answer.StatusCode == http.StatusNotFound; {
			case digest == "" && !gone:
				l.t.Errorf("%s was deleted, and is there again: %v", full, err)
			case digest != "" && err != nil:
				l.t.Errorf("%s was acknowledged: %v", full, err)
			}
		})
	}
	wg.Wait()
}

// wire counts the answers that reach the clients, before their libraries try again.
type wire struct {
	next http.RoundTripper

	mu       sync.Mutex
	requests int
	counts   map[int]int // answers from 500 on, by status; 0 for no answer
	examples []string
}

func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := w.next.RoundTrip(r)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.requests++
	status := 0
	if err == nil {
		status = res.StatusCode
	}
	// go-containerregistry also tries plain HTTP at addresses of loopback.
	if r.URL.Scheme == "https" && (err != nil || status >= http.StatusInternalServerError) {
		w.counts[status]++
		if len(w.examples) < 20 {
			w.examples = append(w.examples, fmt.Sprintf("%s %s %s: %d %v", time.Now().Format("15:04:05.000"), r.Method, r.URL.Path, status, err))
		}
	}
	return res, err
}

// failed returns how many requests had no answer or one with a status from 500 on.
func (w *wire) failed() (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range w.counts {
		n += m
	}
	return n
}

func (w *wire) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return fmt.Sprintf("%d requests, without an answer (0) or from status 500 on: %v\n%s", w.requests, w.counts, strings.Join(w.examples, "\n"))
}
