package forecast

import (
	"maps"
	"slices"

	"github.com/purser-registry/purser/internal/oci"
)

// maxBlobs bounds the memory of storedBlobs. Tests change it.
var maxBlobs = 1_000_000

// storedBlob is a blob that the tags of now need. It has the highest level of the manifests that need it.
type storedBlob struct {
	size  int64
	level storedLevel
}

// raise gives the blob at least a level.
func (b *storedBlob) raise(level storedLevel) {
	b.level = storedLevel{day: max(b.level.day, level.day), setting: max(b.level.setting, level.setting)}
}

// storedBlobs are the blobs of all repositories by digest, if they are known without asking the database
// again: because the days of each repository have been judged by what manifests store.
type storedBlobs struct {
	blobs   map[string]storedBlob
	unknown bool
}

// add adds the blobs of a repository.
func (s *storedBlobs) add(h *history) {
	if s.unknown = s.unknown || h.blobs == nil || len(s.blobs)+len(h.blobs) > maxBlobs; s.unknown {
		s.blobs = nil
		return
	}
	if s.blobs == nil {
		s.blobs = h.blobs
		return
	}
	for digest, b := range h.blobs {
		if old, known := s.blobs[digest]; known {
			b.raise(old.level)
		}
		s.blobs[digest] = b
	}
}

// sizes calls `each` with the size of all blobs of a level.
func (s *storedBlobs) sizes(each func(level storedLevel, size int64)) {
	sums := make(map[storedLevel]int64)
	for _, b := range s.blobs {
		sums[b.level] = oci.AddSizes(sums[b.level], b.size)
	}
	for level, size := range sums {
		each(level, size)
	}
}

// weighStored gives the levels of manifests to the blobs that they need, if the days have read what most of
// these manifests store. It reads the others.
func (h *history) weighStored() error {
	read := 0
	for id := range h.levels {
		if h.stock.Has(id) {
			read++
		}
	}
	if 2*read < len(h.levels) {
		return nil
	}
	if err := h.stock.Look(slices.Collect(maps.Keys(h.levels))); err != nil {
		return err
	}
	needed, levels := make([]bool, h.stock.Blobs()), make([]storedBlob, h.stock.Blobs())
	for id, level := range h.levels {
		for _, number := range h.stock.BlobsOf(id) {
			needed[number] = true
			levels[number].raise(level)
		}
	}
	h.blobs = make(map[string]storedBlob)
	for digest, number := range h.stock.All() {
		if b := levels[number]; needed[number] {
			b.size = h.stock.Size(number)
			h.blobs[digest] = b
		}
	}
	return nil
}
