package management

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/server"
)

// listedReferrer is a manifest whose subject another manifest is, such as a signature of an image.
type listedReferrer struct {
	Digest       oci.Digest        `json:"digest"`
	MediaType    string            `json:"media_type"`
	ArtifactType string            `json:"artifact_type,omitempty"`
	Size         int64             `json:"size" doc:"Stored size of the manifest alone, in bytes"`
	Annotations  map[string]string `json:"annotations,omitempty" nullable:"false" doc:"Missing if they are longer than 64 KiB"`
}

// referrerList is a page of the list of a manifest's referrers.
type referrerList struct {
	Referrers []listedReferrer `json:"referrers" nullable:"false" doc:"In the order in which they were pushed"`
	NextPage  string           `json:"next_page,omitempty" doc:"Where the next page begins; missing on the last page"`
}

func (a *API) addReferrers() {
	type input struct {
		Repository   string     `path:"repository" doc:"Name of the repository" example:"library/alpine"`
		Digest       oci.Digest `path:"digest" doc:"Digest of the manifest"`
		ArtifactType string     `query:"artifact_type" maxLength:"255" doc:"Only referrers of this artifact type" example:"application/spdx+json"`
		NextPage     string     `query:"next_page" doc:"The next_page of the page before"`
		Limit        int        `query:"limit" minimum:"1" default:"50" doc:"Most entries of a page. More than 100 counts as 100"`
	}
	type output struct{ Body referrerList }
	add(a, auth.Pull, huma.Operation{
		OperationID: "listManifestReferrers", Method: http.MethodGet, Path: "/repository/{repository}/manifest/{digest}/referrers",
		Tags: []string{"manifest"}, Summary: "List the referrers of a manifest", Errors: []int{http.StatusNotFound},
		Description: "Lists the manifests whose subject this is: signatures, lists of components, attestations and so on. They can be in the " +
			"repository before their subject is, or without it. A page ends earlier than after limit entries if their annotations are long.",
	}, func(ctx context.Context, in *input) (*output, error) {
		if err := isText("artifact_type", in.ArtifactType); err != nil {
			return nil, err
		}
		var after int64
		if _, err := parseCursor(in.NextPage, "referrer", &after); err != nil {
			return nil, err
		}
		if _, err := a.catalog.RepositoryID(ctx, in.Repository); err != nil {
			return nil, err
		}
		found, more, err := a.catalog.Referrers(ctx, in.Repository, in.Digest, in.ArtifactType, after, min(in.Limit, 100))
		if err != nil {
			return nil, err
		}
		out, err := referrerPage(ctx, found, more)
		return &output{out}, err
	})
}

// referrerPage returns the page that begins with the first of the referrers; `more` says that
// others follow them.
func referrerPage(ctx context.Context, found []catalog.Referrer, more bool) (out referrerList, err error) {
	var size int64 // which the catalog bounds
	for _, r := range found {
		size += int64(len(r.Annotations))
	}
	if _, err := server.Observed(ctx).Lease.Take(ctx, 3*size); err != nil { // as read, decoded and in the answer
		return out, err
	}
	out.Referrers = make([]listedReferrer, 0, len(found))
	for _, r := range found {
		l := listedReferrer{Digest: r.Digest, MediaType: r.MediaType, ArtifactType: r.ArtifactType, Size: r.Size}
		if len(r.Annotations) > 0 {
			if err := json.Unmarshal(r.Annotations, &l.Annotations); err != nil {
				return out, fmt.Errorf("reading the annotations of %s: %w", r.Digest, err)
			}
		}
		out.Referrers = append(out.Referrers, l)
	}
	if more {
		out.NextPage = cursor("referrer", found[len(found)-1].ID)
	}
	return out, nil
}
