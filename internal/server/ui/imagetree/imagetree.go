// Package imagetree orders what belongs to an image: the manifests that an index lists, BuildKit's attestations
// beside their platforms, and the signatures, SBOMs and attestations that refer to each. Pages and commands show
// the same tree. All text of it is from clients, who choose how much there is: whoever shows it clips it.
package imagetree

import (
	"encoding/json"
	"strings"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/server/ui/format"
)

// sizedChildren is for how many manifests of an index the API gives total sizes.
const sizedChildren = 100

// Child is a manifest that an index lists, with what is attached to it.
type Child struct {
	api.ChildManifest
	Kind         string // for people
	Sized        bool   // TotalSize is known, or known to be missing
	Attestations []*Child
	Referrers    []*Referrer
	More         bool // there are more referrers, or nobody has asked for them
}

// Missing says that the repository doesn't have the manifest.
func (c *Child) Missing() bool { return c.Sized && c.TotalSize == nil }

// Children returns the manifests of an index from the one at `from` to the one before `to`. Attestations that
// BuildKit lists behind the image that they are about are beside it.
func Children(m *api.DescribedManifest, from, to int) []*Child {
	var content v1.Index
	_ = json.Unmarshal([]byte(m.ManifestData), &content) //nolint:errcheck // the registry has checked it; without it there are no annotations
	var list []*Child
	of := make(map[string]*Child)
	for i := from; i < to; i++ {
		child := &Child{ChildManifest: m.Manifests[i], Sized: i < sizedChildren}
		child.Kind = format.KindOf(child.MediaType, child.ArtifactType)
		var annotations map[string]string
		if i < len(content.Manifests) {
			annotations = content.Manifests[i].Annotations
		}
		attestation := annotations["vnd.docker.reference.type"] == "attestation-manifest"
		if attestation {
			child.Kind = "attestation (BuildKit)"
		}
		if strings.HasPrefix(child.Platform, "unknown") {
			child.Platform = ""
		}
		// Whoever made the index can't hide an image for another platform there.
		if image := of[annotations["vnd.docker.reference.digest"]]; image != nil && attestation && child.Platform == "" {
			image.Attestations = append(image.Attestations, child)
			continue
		}
		of[child.Digest.String()] = child
		list = append(list, child)
	}
	return list
}

// Referrer is a manifest that refers to another, with those that refer to it.
type Referrer struct {
	api.ListedReferrer
	Kind      string // for people
	Type      string // its artifact type; "" if Kind says it
	Says      string // what the annotations say of its content
	Referrers []*Referrer
	Depth     int
}

// says are the annotations that say of what kind the content is, the one that says most first.
var says = []string{"in-toto.io/predicate-type", "dev.sigstore.bundle.predicateType", "org.opencontainers.image.title", "org.opencontainers.image.description"}

func newReferrer(l api.ListedReferrer, depth int) *Referrer {
	r := &Referrer{ListedReferrer: l, Kind: format.KindOf(l.MediaType, l.ArtifactType), Depth: depth}
	if _, known := format.Artifacts[r.ArtifactType]; !known {
		r.Type = r.ArtifactType
	}
	for _, name := range says {
		if r.Says = r.Annotations[name]; r.Says != "" {
			break
		}
	}
	return r
}

// Source is where the referrers of manifests come from.
type Source struct {
	List     func(api.ReferrerQuery) (api.ReferrerList, error)
	NotFound func(error) bool // the manifest or the repository was deleted meanwhile
}

// ofOneChild is how many referrers a manifest of an index has in the tree. All are in its own tree.
const ofOneChild = 5

// Attach asks for the referrers of up to `most` of the manifests of the index `of`.
func (s Source) Attach(of api.ManifestItem, children []*Child, most int) error {
	asked := 0
	for _, child := range children {
		if child.Missing() || child.Digest == of.Digest {
			continue
		}
		if asked++; asked > most {
			child.More = true
			continue
		}
		item := of
		item.Digest = child.Digest
		list, err := s.List(api.ReferrerQuery{ManifestItem: item, Limit: ofOneChild})
		if err != nil && s.NotFound(err) {
			continue
		}
		if err != nil {
			return err
		}
		child.More = list.NextPage != ""
		for _, listed := range list.Referrers {
			child.Referrers = append(child.Referrers, newReferrer(listed, 1))
		}
	}
	return nil
}

// Limits of a tree of referrers.
const (
	maxDepth     = 4
	maxReferrers = 30
	maxCalls     = 16 // requests to the management API
)

// Tree are the referrers of a manifest.
type Tree struct {
	First []*Referrer
	// Cut says that there are more, deeper ones or further ones. They are in the trees of those that this one has.
	Cut bool
}

// Referrers asks for the referrers of a manifest and for theirs, level by level.
func (s Source) Referrers(of api.ManifestItem) (tree Tree, err error) {
	root := &Referrer{ListedReferrer: api.ListedReferrer{Digest: of.Digest}}
	queue, shown := []*Referrer{root}, 0
	for calls := 0; len(queue) > 0; calls++ {
		if calls == maxCalls || shown == maxReferrers {
			tree.Cut = true
			break
		}
		parent := queue[0]
		queue = queue[1:]
		of.Digest = parent.Digest
		list, err := s.List(api.ReferrerQuery{ManifestItem: of, Limit: 20})
		if err != nil {
			return tree, err
		}
		tree.Cut = tree.Cut || list.NextPage != ""
		for _, listed := range list.Referrers {
			if shown == maxReferrers {
				tree.Cut = true
				break
			}
			shown++
			r := newReferrer(listed, parent.Depth+1)
			parent.Referrers = append(parent.Referrers, r)
			if r.Depth < maxDepth {
				queue = append(queue, r)
			}
		}
	}
	tree.First = root.Referrers
	return tree, nil
}

// TagPrefix is what the names of tags begin with that belong to a manifest by their name. Clients such as cosign
// attach signatures so to images on registries without lists of referrers.
func TagPrefix(digest string) string { return strings.Replace(digest, ":", "-", 1) }

// TagKind returns what a tag is that belongs to a manifest by its name, for people.
func TagKind(digest string, t api.ListedTag) string {
	switch strings.TrimPrefix(t.Name, TagPrefix(digest)) {
	case ".sig":
		return "signature (cosign)"
	case ".att":
		return "attestation (cosign)"
	case ".sbom":
		return "SBOM (cosign)"
	case "":
		return "list of referrers"
	}
	return format.KindOf(t.MediaType, t.ArtifactType)
}
