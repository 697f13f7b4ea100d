package report

import (
	"slices"
	"time"

	"github.com/purser-registry/purser/internal/oci"
)

// clocks is how far the clocks of a cluster and of the registry may differ: a state of a tag that
// ended so much before the tag was resolved may be what it was resolved to.
const clocks = 30 * time.Second

// name is what is asked for in the registry: a tag, or an image's id.
type name struct {
	repository, tag string
	id              oci.Digest
}

// answer is what the registry says of a name.
type answer struct {
	states []State
	err    error
}

// resolver asks the registry once for each name.
type resolver struct {
	registry Registry
	since    map[name]time.Time // how far back the states of each tag are needed
	answers  map[name]answer
}

func newResolver(r Registry, images []Image) *resolver {
	s := &resolver{r, map[name]time.Time{}, map[name]answer{}}
	now := time.Now()
	for _, i := range images {
		at := i.At
		if at.IsZero() {
			at = now
		}
		if old, known := s.since[i.name()]; !known || at.Before(old) {
			s.since[i.name()] = at
		}
	}
	return s
}

func (i Image) name() name { return name{i.Repository, i.Tag, i.ID} }

// digests returns the digests of an image: of a tag those that it has now and had at i.At, and, if
// i.Since is set, those that it had after that.
func (s *resolver) digests(i Image) ([]oci.Digest, error) {
	if !i.Digest.IsZero() {
		return []oci.Digest{i.Digest}, nil
	}
	a := s.ask(i.name())
	return i.choose(a.states), a.err
}

func (s *resolver) ask(n name) answer {
	a, known := s.answers[n]
	if known {
		return a
	}
	if n.tag != "" {
		a.states, a.err = s.registry.Tag(n.repository, n.tag, s.since[n].Add(-clocks))
	} else {
		var list []oci.Digest
		list, a.err = s.registry.Image(n.repository, n.id)
		for _, d := range list {
			a.states = append(a.states, State{Digest: d})
		}
	}
	s.answers[n] = a
	return a
}

// choose returns the digests of those of a tag's states that the image may have. The states are in
// the order of their ends, the newest first. At i.At, the tag had the first state that ended after
// that, also if it isn't known when this state began.
func (i Image) choose(states []State) (digests []oci.Digest) {
	add := func(d oci.Digest) {
		if !slices.Contains(digests, d) {
			digests = append(digests, d)
		}
	}
	then := -1
	for n, s := range states {
		switch {
		case s.End.IsZero():
			add(s.Digest)
		case i.At.IsZero() || s.End.Before(i.At.Add(-clocks)):
		case i.Since || s.End.Before(i.At.Add(clocks)):
			add(s.Digest)
		default:
			then = n
		}
	}
	if then >= 0 {
		add(states[then].Digest)
	}
	return digests
}
