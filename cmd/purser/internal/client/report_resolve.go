package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/purser-registry/purser/cmd/purser/internal/report"
	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/oci"
)

// asked is a report.Registry that asks a server.
type asked struct {
	ctx    context.Context
	client *api.Client
	within time.Duration // for each answer
}

// maxTagPages is how many pages of a tag's history are read, of 100 states each.
const maxTagPages = 50

// Tag returns the states of a tag that ended after `since`, and perhaps some before that. The
// history lists the newest first.
func (a asked) Tag(repository, tag string, since time.Time) (states []report.State, err error) {
	in := api.TagQuery{InRepository: api.InRepository{Repository: repository}, Specific: tag, OnlyActive: api.Some(false), Limit: 100}
	for range maxTagPages {
		page, err := a.tags(in)
		if err != nil {
			return states, refusal(err)
		}
		for _, t := range page.Tags {
			s := report.State{Digest: t.ManifestDigest}
			// An end in the future is the tag's expiration; 0: the tag has this digest.
			if end := time.Unix(t.EndTS, 0); t.EndTS != 0 && !end.After(time.Now()) {
				s.End = end
			}
			if states = append(states, s); !s.End.IsZero() && s.End.Before(since) {
				return states, nil
			}
		}
		if page.NextPage == "" {
			return states, nil
		}
		in.NextPage = page.NextPage
	}
	return states, &report.Refusal{Reason: fmt.Sprintf("it was moved more than %d times since then, of which only the last ones count", len(states))}
}

func (a asked) tags(in api.TagQuery) (api.TagPage, error) {
	ctx, cancel := registryLimit(a.ctx, a.within)
	defer cancel()
	return api.ListTags.Call(ctx, a.client, in)
}

// Image returns the manifests whose configuration is `id`, and the manifest with this digest.
func (a asked) Image(repository string, id oci.Digest) (digests []oci.Digest, err error) {
	ctx, cancel := registryLimit(a.ctx, a.within)
	defer cancel()
	found, err := api.FindImage.Call(ctx, a.client, api.ImageItem{InRepository: api.InRepository{Repository: repository}, Image: id})
	return found.Digests, refusal(err)
}

// refusal turns the registry's error into a report.Refusal, and its answer that something isn't
// there into nil. It returns other errors, such as that of a registry that can't be reached.
func refusal(err error) error {
	refused, ok := errors.AsType[*api.Error](err)
	switch {
	case !ok:
		return err
	case refused.Status == http.StatusNotFound:
		return nil
	}
	return &report.Refusal{Reason: err.Error()}
}
