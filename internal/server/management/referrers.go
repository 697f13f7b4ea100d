package management

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/server"
)

func (a *API) listReferrers(ctx context.Context, in *api.ReferrerQuery) (*api.ReferrerList, error) {
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
	return referrerPage(ctx, found, more)
}

// referrerPage returns the page that begins with the first of the referrers; `more` says that
// others follow them.
func referrerPage(ctx context.Context, found []catalog.Referrer, more bool) (*api.ReferrerList, error) {
	var size int64 // which the catalog bounds
	for _, r := range found {
		size += int64(len(r.Annotations))
	}
	if _, err := server.Observed(ctx).Lease.Take(ctx, 3*size); err != nil { // as read, decoded and in the answer
		return nil, err
	}
	out := &api.ReferrerList{Referrers: make([]api.ListedReferrer, 0, len(found))}
	for _, r := range found {
		l := api.ListedReferrer{Digest: r.Digest, MediaType: r.MediaType, ArtifactType: r.ArtifactType, Size: r.Size}
		if len(r.Annotations) > 0 {
			if err := json.Unmarshal(r.Annotations, &l.Annotations); err != nil {
				return nil, fmt.Errorf("reading the annotations of %s: %w", r.Digest, err)
			}
		}
		out.Referrers = append(out.Referrers, l)
	}
	if more {
		out.NextPage = cursor("referrer", found[len(found)-1].ID)
	}
	return out, nil
}
