package registries

import (
	"context"
	crand "crypto/rand"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
)

// workload is one kind of operation that the program measures. For each target it gives one
// row of a table.
type workload struct {
	name     string
	about    string
	optional bool                 // run only when asked for
	once     bool                 // one operation per window instead of as many as fit
	bytes    func(*options) int64 // content that an operation moves; nil: too little to matter
	baseline string               // path at the baselines' child process; empty: none
	limit    string               // name of that baseline in the tables

	// Either probes returns the paths that the workload reads, with requests of this method,
	// or open prepares other operations.
	method string
	probes func(*bench) []probe
	open   func(context.Context, *bench, *target) (*session, error)
}

// session is a workload that is ready to run on one target. It has one operation for each
// worker.
type session struct {
	ops   []operation
	conns []*conn
	after func(context.Context) error // undoes the session's pushes, outside the measured time; or nil
}

func (s *session) close() {
	for _, c := range s.conns {
		c.close()
	}
}

func (s *session) dials() int {
	n := 0
	for _, c := range s.conns {
		n += c.dials
	}
	return n
}

// The content that these workloads read is pushed only if the workload was selected, since no
// other workload needs it.
const (
	tagsWorkload  = "tags-1000"
	manyWorkload  = "manifests-2000"
	pullsWorkload = "pull-images"
)

var workloads = []workload{
	{
		name: "manifest-by-tag", about: "GET of a manifest of 1 KiB by tag",
		baseline: pathFixed, limit: nameFixed, method: http.MethodGet, probes: manifestsByTag,
	}, {
		name: "manifest-by-digest", about: "GET of a manifest of 1 KiB by digest",
		baseline: pathFixed, limit: nameFixed, method: http.MethodGet, probes: manifestsByDigest,
	}, {
		name: manyWorkload, about: "GET of -many distinct manifests by tag in turn",
		baseline: pathFixed, limit: nameFixed, method: http.MethodGet, probes: manyManifests,
	}, {
		name: "head-blob", about: "HEAD of a blob",
		baseline: pathFixed, limit: nameFixed, method: http.MethodHead, probes: smallBlobs,
	}, {
		name: "get-1MiB", about: "GET of a blob of 1 MiB",
		bytes:    func(*options) int64 { return bigSize },
		baseline: pathFile, limit: nameFile, method: http.MethodGet, probes: bigBlob,
	}, {
		name: tagsWorkload, about: "list of the 1,000 tags of a repository in one answer",
		method: http.MethodGet, probes: tagList,
	}, {
		name: pullsWorkload, about: "pull of an image: manifest by tag, configuration, 3 layers of 10 KiB",
		bytes: func(*options) int64 { return 3 * smallSize },
		open:  openPulls,
	}, {
		name: "small-images", about: "push of an image: 3 layers of 10 KiB, configuration, manifest by tag",
		bytes: func(*options) int64 { return 3 * smallSize },
		open:  openSmallImages,
	}, {
		name: "layer-1GiB", about: "push of one large layer (-layer-mib): POST, streamed PATCH, PUT",
		once: true, bytes: func(o *options) int64 { return o.layerMiB << 20 },
		baseline: pathLimit, limit: nameLimit, open: openLayer,
	}, {
		name: "mount", about: "mount of a blob from another repository", optional: true,
		open: openMount,
	},
}

// workloadNames returns the names of all workloads, or, if `def` is true, of those that run
// if the flag -w isn't given.
func workloadNames(def bool) []string {
	var names []string
	for _, w := range workloads {
		if !def || !w.optional {
			names = append(names, w.name)
		}
	}
	return names
}

// selectWorkloads returns the workloads in the comma-separated list, in the order of the
// tables. An unknown name is an error.
func selectWorkloads(list string) ([]workload, error) {
	names := strings.Split(list, ",")
	for _, n := range names {
		if !slices.Contains(workloadNames(false), n) {
			return nil, fmt.Errorf("unknown workload %q; there are %s", n, strings.Join(workloadNames(false), ", "))
		}
	}
	var selected []workload
	for _, w := range workloads {
		if slices.Contains(names, w.name) {
			selected = append(selected, w)
		}
	}
	return selected, nil
}

// openSmallImages prepares the workload small-images. Its operation pushes an image that no
// registry has seen, under a tag of its own.
func openSmallImages(_ context.Context, b *bench, t *target) (*session, error) {
	s := &session{}
	for range b.pushWorkers {
		var seed [32]byte
		crand.Read(seed[:]) // never fails (crypto/rand)
		random := rand.NewChaCha8(seed)
		p := newPusher(t, b.options)
		s.conns = append(s.conns, p.conn)
		s.ops = append(s.ops, func(ctx context.Context) error {
			var layers []blob
			for range 3 {
				layers = append(layers, newBlob(randomBytes(random, smallSize)))
			}
			tag := layers[0].digest[len("sha256:"):][:32]
			return p.image(ctx, b.prefix+"/push", tag, newImage(config(tag), layers, nil, 0))
		})
	}
	return s, nil
}

// openLayer prepares the push of one new large layer. It makes the layer and computes its
// digest, so that the measurement doesn't include this.
func openLayer(_ context.Context, b *bench, t *target) (*session, error) {
	src, err := b.layers()
	if err != nil {
		return nil, err
	}
	l, err := src.new()
	if err != nil {
		return nil, err
	}
	p := newPusher(t, b.options)
	return &session{conns: []*conn{p.conn}, ops: []operation{oneTime(func(ctx context.Context) error {
		return p.layer(ctx, b.prefix+"/layer", l, b.layerEncoding)
	})}}, nil
}

// oneTime returns an operation that can be called twice: the first call calls op, the second
// returns errDone.
func oneTime(op operation) operation {
	called := false
	return func(ctx context.Context) error {
		if called {
			return errDone
		}
		called = true
		return op(ctx)
	}
}

// openMount prepares the workload mount, whose operation mounts a small layer of an image that
// other workloads read into another repository.
func openMount(_ context.Context, b *bench, t *target) (*session, error) {
	s := &session{}
	for w := range b.conns {
		p, next := newPusher(t, b.options), w
		s.conns = append(s.conns, p.conn)
		s.ops = append(s.ops, func(ctx context.Context) error {
			digest := b.fixture.small(next % len(b.fixture.hot)).digest
			next++
			path := "/v2/" + b.prefix + "/mount/blobs/uploads/?mount=" + digest + "&from=" + b.readRepo()
			if _, err := p.exchange(ctx, http.MethodPost, path, nil, http.StatusCreated); err != nil {
				return err
			}
			return checkDigest(&p.answer, digest)
		})
	}
	return s, nil
}
