package upstream

import (
	"fmt"
	"sync"

	"github.com/purser-registry/purser/internal/oci"
)

// Walk is one way through the manifests of a repository, from an index to what it lists and from a
// manifest to what is attached to it. It enters each once. Its methods may be called concurrently.
type Walk struct {
	limit Limits

	mu   sync.Mutex
	seen map[oci.Digest]bool
}

// Walk begins a walk.
func (p *Repository) Walk() *Walk {
	return &Walk{limit: p.registry.limit, seen: make(map[oci.Digest]bool)}
}

// Enter says whether the walk enters a manifest: it does if it wasn't there. `depth` is the number
// of manifests above it. It returns an error if the walk is too deep or too long.
func (w *Walk) Enter(d oci.Digest, depth int) (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.seen[d]:
		return false, nil
	case depth > w.limit.Depth:
		return false, &Error{text: fmt.Sprintf("manifest %s is more than %d manifests deep", d, w.limit.Depth)}
	case len(w.seen) == w.limit.Manifests:
		return false, &Error{text: fmt.Sprintf("there are more than %d manifests in it and attached to it", w.limit.Manifests)}
	}
	w.seen[d] = true
	return true, nil
}
