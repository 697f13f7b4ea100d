package judge

import (
	"iter"
	"maps"
	"math"
)

// weighBatch is how many manifests or blobs a stock asks for in one call.
const weighBatch = 1000

// Stock has what manifests of a repository store and keep from garbage collection, as far as it was
// asked for. Manifests and blobs have numbers from 0 on, so that adding up the same ones many times,
// as a forecast does for each day, looks nothing up by a digest. What was looked at or added for
// one sum is marked with the number of the sum, so nothing has to be cleared for the next.
type Stock struct {
	repository Repository
	places     map[int64]int32 // numbers of manifests, by id
	manifests  []stocked
	numbers    map[string]int32 // of blobs, by digest
	blobs      []stockedBlob
	unsized    []string // digests of the blobs whose sizes aren't known and weren't asked for yet
	sum        uint32   // number of the present sum
}

// stocked is a manifest of a stock.
type stocked struct {
	id, size    int64
	blobs, kept []int32
	read        bool   // blobs and kept are known
	looked      uint32 // the last sum for which this manifest and those that it keeps were read
	added       uint32 // the last sum that has it
}

type stockedBlob struct {
	size  int64
	added uint32
}

// NewStock returns a stock that has nothing yet, and asks the functions of r.
func NewStock(r Repository) *Stock {
	return &Stock{repository: r, places: make(map[int64]int32), numbers: make(map[string]int32)}
}

// place returns the number of a manifest.
func (s *Stock) place(id int64) int32 {
	place, known := s.places[id]
	if !known {
		place = int32(len(s.manifests))
		s.places[id], s.manifests = place, append(s.manifests, stocked{id: id})
	}
	return place
}

// read reads those of the manifests that it hasn't read yet: at most weighBatch.
func (s *Stock) read(places []int32) error {
	var ids []int64
	for _, p := range places {
		if m := &s.manifests[p]; !m.read {
			m.read = true
			ids = append(ids, m.id)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	contents, err := s.repository.Contents(ids)
	if err != nil {
		return err
	}
	for _, c := range contents {
		m := &s.manifests[s.place(c.Manifest)]
		m.size, m.blobs = c.Size, make([]int32, len(c.Blobs))
		for i, digest := range c.Blobs {
			number, known := s.numbers[digest]
			if !known {
				number = int32(len(s.blobs))
				b := stockedBlob{size: -1}
				if c.Sizes != nil {
					b.size = c.Sizes[i]
				}
				if b.size < 0 {
					s.unsized = append(s.unsized, digest)
				}
				s.numbers[digest], s.blobs = number, append(s.blobs, b)
			}
			m.blobs[i] = number
		}
	}
	references, err := s.repository.Kept(ids)
	if err != nil {
		return err
	}
	for _, r := range references {
		child := s.place(r.Child) // may move the manifests
		m := &s.manifests[s.place(r.Parent)]
		m.kept = append(m.kept, child)
	}
	return nil
}

// readSizes reads the sizes of the blobs that read has met.
func (s *Stock) readSizes() error {
	for len(s.unsized) > 0 {
		part := s.unsized[:min(weighBatch, len(s.unsized))]
		sizes, err := s.repository.BlobSizes(part)
		if err != nil {
			return err
		}
		for _, digest := range part {
			s.blobs[s.numbers[digest]].size = sizes[digest]
		}
		s.unsized = s.unsized[len(part):]
	}
	return nil
}

// Look reads some manifests and all that they keep, as far as they aren't in the stock.
func (s *Stock) Look(manifests []int64) error {
	places := make([]int32, 0, len(manifests))
	for _, id := range manifests {
		places = append(places, s.place(id))
	}
	return s.newScales(nil).look(places)
}

// Has returns whether a manifest was read.
func (s *Stock) Has(manifest int64) bool {
	place, known := s.places[manifest]
	return known && s.manifests[place].read
}

// BlobsOf returns the numbers of the blobs that a manifest itself references.
func (s *Stock) BlobsOf(manifest int64) []int32 { return s.manifests[s.place(manifest)].blobs }

// Blobs returns how many blobs the stock has. Their numbers are below it.
func (s *Stock) Blobs() int { return len(s.blobs) }

// All yields the digest and the number of each blob, in any order.
func (s *Stock) All() iter.Seq2[string, int32] { return maps.All(s.numbers) }

// Size returns the size of the blob with a number, in bytes.
func (s *Stock) Size(number int32) int64 { return s.blobs[number].size }

// scales add up what manifests store, with what they keep from garbage collection: the manifests
// that an index lists, the referrers of an image, and what tags attached to it point to.
type scales struct {
	*Stock
	attached map[int64][]int64 // manifests of attached tags, by image
	bytes    int64             // the sum, at most math.MaxInt64
	stack    []int32
}

// newScales begins a sum.
func (s *Stock) newScales(attached map[int64][]int64) *scales {
	s.sum++
	return &scales{Stock: s, attached: attached}
}

// below calls fn with the numbers of what a manifest keeps.
func (s *scales) below(place int32, fn func(int32)) {
	for _, kept := range s.manifests[place].kept {
		fn(kept)
	}
	if len(s.attached) == 0 {
		return
	}
	for _, id := range s.attached[s.manifests[place].id] {
		fn(s.place(id))
	}
}

// exceeds returns the rank of the first tag at which the tags that policy i counts, in the given
// order, store more than `limit` bytes. ok is false if they don't.
func (s *scales) exceeds(tags []weighedTag, order []weighedPlace, i int, limit int64) (beyond rank, ok bool, err error) {
	places := make([]int32, 0, min(len(tags), weighBatch))
	for begin := 0; begin < len(order); {
		end := begin
		places = places[:0]
		for ; end < len(order) && len(places) < weighBatch; end++ {
			if t := &tags[order[end].index]; t.counted.Has(i) {
				places = append(places, s.Stock.place(t.manifest))
			}
		}
		if err := s.look(places); err != nil {
			return rank{}, false, err
		}
		next := 0
		for _, p := range order[begin:end] {
			if !tags[p.index].counted.Has(i) {
				continue
			}
			s.add(places[next])
			if next++; s.bytes > limit {
				return tags[p.index].rank, true, nil
			}
		}
		begin = end
	}
	return rank{}, false, nil
}

// look reads manifests and all that they keep, as far as they aren't in the stock.
func (s *scales) look(places []int32) error {
	var level, next []int32
	meet := func(p int32) {
		if m := &s.manifests[p]; m.looked != s.sum {
			m.looked = s.sum
			next = append(next, p)
		}
	}
	for _, p := range places {
		meet(p)
	}
	for len(next) > 0 {
		level, next = next, level[:0]
		for begin := 0; begin < len(level); begin += weighBatch {
			if err := s.read(level[begin:min(begin+weighBatch, len(level))]); err != nil {
				return err
			}
		}
		for _, p := range level {
			s.below(p, meet)
		}
	}
	return s.readSizes()
}

// add adds a manifest, and what it keeps, to the sum.
func (s *scales) add(place int32) {
	s.stack = append(s.stack[:0], place)
	for len(s.stack) > 0 {
		p := s.stack[len(s.stack)-1]
		s.stack = s.stack[:len(s.stack)-1]
		m := &s.manifests[p]
		if m.added == s.sum {
			continue
		}
		m.added = s.sum
		s.plus(m.size)
		for _, number := range m.blobs {
			if b := &s.blobs[number]; b.added != s.sum {
				b.added = s.sum
				s.plus(b.size)
			}
		}
		s.below(p, func(kept int32) { s.stack = append(s.stack, kept) })
	}
}

func (s *scales) plus(size int64) {
	s.bytes += min(max(0, size), math.MaxInt64-s.bytes)
}
