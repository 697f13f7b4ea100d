package api

import (
	"net/http"
	"time"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/oci"
)

// Kinds of what a search finds.
const (
	FoundNamespace  = "namespace"
	FoundRepository = "repository"
	FoundTag        = "tag"
	FoundManifest   = "manifest"
)

// FoundItem is something that a search has found.
type FoundItem struct {
	Kind         string      `json:"kind" enum:"namespace,repository,tag,manifest"`
	Name         string      `json:"name" doc:"Of a tag and a manifest as clients write it: repository:tag, repository@digest" example:"library/alpine:3.22"`
	Namespace    string      `json:"namespace" example:"library"`
	Repository   string      `json:"repository,omitempty" doc:"Missing for a namespace" example:"library/alpine"`
	Tag          string      `json:"tag,omitempty" doc:"Of a tag" example:"3.22"`
	Digest       *oci.Digest `json:"digest,omitempty" doc:"Of a manifest, or of that to which the tag points"`
	MediaType    string      `json:"media_type,omitempty" doc:"Of a manifest"`
	ArtifactType string      `json:"artifact_type,omitempty" doc:"Of a manifest that is no image"`
	PushedAt     *time.Time  `json:"pushed_at,omitempty" doc:"Of a tag"`
	Tags         []string    `json:"tags,omitempty" nullable:"false" doc:"Up to 3 tags that point to the manifest"`
	Blob         *oci.Digest `json:"blob,omitempty" doc:"The digest that was found, if it isn't the manifest's own but that of its configuration, by which Docker knows an image, or of one of its layers"`
}

// FoundItems is what a search has found.
type FoundItems struct {
	Results []FoundItem `json:"results" nullable:"false" doc:"Namespaces, repositories, tags, manifests; of each kind the names that are exactly as was asked for come first"`
	More    []string    `json:"more,omitempty" nullable:"false" doc:"Kinds of which there may be more: write more of the name, or repository:tag"`
}

// Has says whether there may be more of a kind.
func (f FoundItems) Has(kind string) bool {
	for _, k := range f.More {
		if k == kind {
			return true
		}
	}
	return false
}

// FindQuery is the input of a search.
type FindQuery struct {
	Query string `query:"query" required:"true" minLength:"1" maxLength:"512" doc:"A part of a name, the beginning of a tag's name, a digest or its first 6 digits, repository:tag or repository@digest. It may begin with the registry's own host. All characters are taken literally" example:"alpine"`
	Limit int    `query:"limit" minimum:"1" default:"10" doc:"Most results of each kind. More than 50 counts as 50"`
}

// Find searches everything that the client may read.
var Find = Operation[FindQuery, FoundItems]{
	ID: "conductSearch", Method: http.MethodGet, Path: "/find/all", Tag: "repository", Access: auth.List,
	Summary: "Search namespaces, repositories, tags and digests",
	Description: "Searches everything from which one may pull. A tag is found by the beginning of its name; by another part of it only " +
		"as far as 50,000 names are compared, so write repository:part to search one repository. A digest is found by its first digits: that of a manifest, " +
		"of an image's configuration, or of a layer. A client that may not pull from every repository searches the first 10,000 of those from which it may.",
}
