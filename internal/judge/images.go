package judge

import (
	"maps"
	"slices"
)

// images finds the images that lose their last tag, and so the attached tags that are
// deleted with them. It is a graph with reference counts. Its nodes are the images of
// attached tags and the indexes above them. A manifest's references are its tags and the
// indexes that list it. A deleted tag, or an index that has lost all of its references, no
// longer counts as a reference.
type images struct {
	places   map[int64]int32 // index in nodes, by manifest
	nodes    []node
	edges    []edge
	attached []attachedTag
	dead     []int32 // nodes without references, whose own references have yet to be released
}

// node is a manifest in the graph. Its lists of children and attached tags are linked
// lists: firstChild is an index in images.edges, firstAttached one in images.attached, and
// -1 ends a list.
type node struct {
	tags, released  int32     // number of its tags, and of those that are deleted
	references      int32     // number of tags, and of indexes that stay
	policies        PolicySet // policies that took its deleted tags and indexes
	firstChild      int32
	firstAttached   int32
	reachable, gone bool
}

type edge struct{ child, next int32 }

// attachedTag is a tag that is deleted with its image.
type attachedTag struct {
	image, manifest int64
	exempt          PolicySet
	protected       bool
	next            int32 // next attached tag of the same image
}

// parentsBatch is the largest number of manifests that newImages passes to one call of the
// function `parents`.
const parentsBatch = 1000

// newImages builds the graph upwards from the images of attached tags: it calls `parents`
// to find the indexes above them, level by level. The caller adds the tags later, with
// addTag.
func newImages(attached []attachedTag, parents func([]int64) ([]Reference, error)) (*images, error) {
	g := &images{places: make(map[int64]int32), attached: attached}
	var frontier []int64
	for i := range attached {
		c := &attached[i]
		place, added := g.place(c.image)
		if added {
			frontier = append(frontier, c.image)
		}
		c.next = g.nodes[place].firstAttached
		g.nodes[place].firstAttached = int32(i)
	}
	if parents == nil {
		return g, nil
	}
	for len(frontier) > 0 {
		batch := frontier[:min(parentsBatch, len(frontier))]
		references, err := parents(batch)
		if err != nil {
			return nil, err
		}
		frontier = frontier[len(batch):]
		for _, r := range references {
			child, known := g.places[r.Child]
			if !known {
				continue
			}
			parent, added := g.place(r.Parent)
			if added {
				frontier = append(frontier, r.Parent)
			}
			g.edges = append(g.edges, edge{child: child, next: g.nodes[parent].firstChild})
			g.nodes[parent].firstChild = int32(len(g.edges) - 1)
		}
	}
	return g, nil
}

// place returns the index of the manifest's node in g.nodes, and creates the node if there
// is none. `added` says that it has created the node.
func (g *images) place(manifest int64) (place int32, added bool) {
	place, known := g.places[manifest]
	if !known {
		place = int32(len(g.nodes))
		g.places[manifest] = place
		g.nodes = append(g.nodes, node{firstChild: -1, firstAttached: -1})
	}
	return place, !known
}

// has returns whether the graph has a node for the manifest.
func (g *images) has(manifest int64) bool {
	_, ok := g.places[manifest]
	return ok
}

// addTag counts a tag that points to the manifest. If `taken` isn't empty, it has the
// policies that delete the tag.
func (g *images) addTag(manifest int64, taken PolicySet) {
	place, ok := g.places[manifest]
	if !ok {
		return
	}
	n := &g.nodes[place]
	n.tags++
	if taken != 0 {
		n.released++
		n.policies |= taken
	}
}

// hold keeps the manifests of the graph that `held` returns: each counts one reference that
// nothing releases. So what is attached to them stays too.
func (g *images) hold(held func([]int64) ([]int64, error)) error {
	if held == nil {
		return nil
	}
	for batch := range slices.Chunk(slices.Sorted(maps.Keys(g.places)), parentsBatch) {
		found, err := held(batch)
		if err != nil {
			return err
		}
		for _, manifest := range found {
			g.addTag(manifest, 0)
		}
	}
	return nil
}

// settle removes the references of deleted tags from the counts. It returns the images
// whose count becomes 0, with the policies that deleted their tags. It doesn't return an
// image that never had a tag.
func (g *images) settle() map[int64]PolicySet {
	for i := range g.attached {
		g.addTag(g.attached[i].manifest, 0)
	}
	g.countReferences()
	for place := range g.nodes {
		if n := &g.nodes[place]; n.released > 0 {
			g.release(int32(place), n.released, n.policies)
		}
	}
	for len(g.dead) > 0 {
		place := g.dead[len(g.dead)-1]
		g.dead = g.dead[:len(g.dead)-1]
		g.passOn(place)
	}
	gone := make(map[int64]PolicySet)
	for manifest, place := range g.places {
		if n := &g.nodes[place]; n.gone && n.firstAttached >= 0 {
			gone[manifest] = n.policies
		}
	}
	return gone
}

// countReferences counts the references of each node before anything is deleted.
func (g *images) countReferences() {
	var stack []int32
	for place := range g.nodes {
		if n := &g.nodes[place]; n.tags > 0 {
			n.references = n.tags
			n.reachable = true
			stack = append(stack, int32(place))
		}
	}
	for len(stack) > 0 {
		place := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		for e := g.nodes[place].firstChild; e >= 0; e = g.edges[e].next {
			child := &g.nodes[g.edges[e].child]
			child.references++
			if !child.reachable {
				child.reachable = true
				stack = append(stack, g.edges[e].child)
			}
		}
	}
}

// release removes references from a node that were taken by policies.
func (g *images) release(place, references int32, policies PolicySet) {
	n := &g.nodes[place]
	n.policies |= policies
	n.references -= references
	if n.references == 0 && !n.gone {
		n.gone = true
		g.dead = append(g.dead, place)
	}
}

// passOn is called for a manifest to which no reference is left. It removes the references
// from this manifest to its children. The tags attached to the manifest are deleted with
// it, so it also removes the references from these tags to the manifests that they point
// to.
func (g *images) passOn(place int32) {
	n := g.nodes[place]
	for e := n.firstChild; e >= 0; e = g.edges[e].next {
		g.release(g.edges[e].child, 1, n.policies)
	}
	for i := n.firstAttached; i >= 0; i = g.attached[i].next {
		c := &g.attached[i]
		taken := n.policies &^ c.exempt
		if c.protected || taken == 0 {
			continue
		}
		if own, ok := g.places[c.manifest]; ok {
			g.release(own, 1, taken)
		}
	}
}
