package management

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/catalog/browse"
	"github.com/purser-registry/purser/internal/oci"
)

const (
	// mostFound is the most results of each kind.
	mostFound = 50
	// searchTime is how long a search may take. It takes far less unless the database is overloaded.
	searchTime = 2 * time.Second
)

// addFind binds the search.
func (a *API) addFind() { serve(a, api.Find, a.find) }

// find runs one search. Of each client only one search runs or waits for its turn to run.
func (a *API) find(ctx context.Context, in *api.FindQuery) (*api.FoundItems, error) {
	viewer, err := a.server.Viewer(ctx)
	if err != nil {
		return nil, err
	}
	_, host, _ := strings.Cut(a.server.PublicBase(ctx), "://")
	var found browse.Found
	err = a.runInTurn(ctx, a.searches, searchTime, func(ctx context.Context) (err error) {
		found, err = a.browser.Find(ctx, viewer, browse.ParseWanted(in.Query, host), min(in.Limit, mostFound))
		return err
	})
	if errors.Is(err, errTooLong) {
		return nil, oci.Errorf(oci.Unavailable, "the search took longer than %s, so it was ended: write more of the name, or try again later", searchTime)
	}
	if err != nil {
		return nil, err
	}
	return foundItems(found), nil
}

// foundItems returns what was found as the API answers it.
func foundItems(f browse.Found) *api.FoundItems {
	out := &api.FoundItems{Results: []api.FoundItem{}}
	add := func(i api.FoundItem) {
		i.Namespace, _, _ = strings.Cut(i.Name, "/")
		if i.Repository != "" {
			i.Namespace, _, _ = strings.Cut(i.Repository, "/")
		}
		out.Results = append(out.Results, i)
	}
	for _, name := range f.Namespaces {
		add(api.FoundItem{Kind: api.FoundNamespace, Name: name})
	}
	for _, path := range f.Repositories {
		add(api.FoundItem{Kind: api.FoundRepository, Name: path, Repository: path})
	}
	for _, t := range f.Tags {
		add(api.FoundItem{
			Kind: api.FoundTag, Name: t.Repository + ":" + t.Name, Repository: t.Repository, Tag: t.Name, Digest: &t.Digest, PushedAt: &t.PushedAt,
		})
	}
	for _, m := range f.Manifests {
		i := api.FoundItem{
			Kind: api.FoundManifest, Name: m.Repository + "@" + m.Digest.String(), Repository: m.Repository, Digest: &m.Digest,
			MediaType: m.MediaType, ArtifactType: m.ArtifactType, Tags: m.Tags,
		}
		if m.Blob != (oci.Digest{}) {
			i.Blob = &m.Blob
		}
		add(i)
	}
	for _, k := range []struct {
		kind string
		more bool
	}{
		{api.FoundNamespace, f.More.Namespaces}, {api.FoundRepository, f.More.Repositories},
		{api.FoundTag, f.More.Tags}, {api.FoundManifest, f.More.Manifests},
	} {
		if k.more {
			out.More = append(out.More, k.kind)
		}
	}
	return out
}
