package ui

import (
	"strings"

	"github.com/purser-registry/purser/internal/api"
)

// Limits of the tree of referrers on a page.
const (
	maxReferrerDepth = 4
	maxReferrers     = 30
	maxReferrerCalls = 16 // requests to the management API for one tree
)

// referrer is a manifest that refers to another, with those that refer to it.
type referrer struct {
	api.ListedReferrer
	Name, Type, Link string // Type is empty if the name says it
	Says             string // what the annotations say of its content
	Referrers        []*referrer
	Depth            int
}

// referrerTree is what a page shows of the referrers of a manifest.
type referrerTree struct {
	First []*referrer
	// Cut says that there are more, deeper ones or further ones. They are on the pages of those
	// that are shown.
	Cut bool
}

// referrersOf asks for the referrers of a manifest and for theirs, level by level.
func (q *request) referrersOf(of api.ManifestItem, words *room) (tree referrerTree, err error) {
	root := &referrer{ListedReferrer: api.ListedReferrer{Digest: of.Digest}}
	queue, shown := []*referrer{root}, 0
	for calls := 0; len(queue) > 0; calls++ {
		if calls == maxReferrerCalls || shown == maxReferrers {
			tree.Cut = true
			break
		}
		parent := queue[0]
		queue = queue[1:]
		of.Digest = parent.Digest
		list, err := run(q, api.ListReferrers, api.ReferrerQuery{ManifestItem: of, Limit: 20})
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
			r := &referrer{ListedReferrer: listed}
			r.describe(of.Repository, words)
			parent.Referrers = append(parent.Referrers, r)
			if r.Depth = parent.Depth + 1; r.Depth < maxReferrerDepth {
				queue = append(queue, r)
			}
		}
	}
	tree.First = root.Referrers
	return tree, nil
}

// describe sets what the page shows of a referrer.
func (r *referrer) describe(repository string, words *room) {
	r.Name = kindOf(r.MediaType, r.ArtifactType)
	if _, known := artifacts[r.ArtifactType]; !known && r.ArtifactType != "" {
		r.Type = words.clip(100, r.ArtifactType)
	}
	r.Link = link(manifestPath, repository, r.Digest.String())
	for _, name := range []string{"in-toto.io/predicate-type", "dev.sigstore.bundle.predicateType", "org.opencontainers.image.title", "org.opencontainers.image.description"} {
		if text := r.Annotations[name]; text != "" {
			r.Says = words.clip(120, text)
			break
		}
	}
}

// attachedTag is a tag that belongs to a manifest by its name, as cosign names signatures.
type attachedTag struct{ Name, What, Digest string }

// attachedTags lists tags like sha256-<digest>.sig, by which clients attach signatures to images
// on registries without lists of referrers.
func (q *request) attachedTags(repository, digest string) ([]attachedTag, error) {
	prefix := strings.Replace(digest, ":", "-", 1)
	list, err := run(q, api.ListTags, api.TagQuery{
		InRepository: repositoryOf(repository), NameFilter: api.NameFilter{Prefix: prefix}, Sort: "name", Limit: 10,
	})
	if err != nil {
		return nil, err
	}
	var found []attachedTag
	for _, t := range list.Tags {
		what := map[string]string{".sig": "signature (cosign)", ".att": "attestation (cosign)", ".sbom": "SBOM (cosign)", "": "list of referrers"}[strings.TrimPrefix(t.Name, prefix)]
		if what == "" {
			what = kindOf(t.MediaType, t.ArtifactType)
		}
		found = append(found, attachedTag{t.Name, what, t.ManifestDigest.String()})
	}
	return found, nil
}
