package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/purser-registry/purser/cmd/purser/internal/report"
	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/oci"
)

// asked is a report.Registry that asks a server.
type asked struct {
	ctx    context.Context
	client *api.Client
}

// maxTagPages is how many pages of a tag's history are read, of 100 states each.
const maxTagPages = 50

// Tag returns the states of a tag that ended after `since`, and perhaps some before that. The
// history lists the newest first.
func (a asked) Tag(repository, tag string, since time.Time) (states []report.State, err error) {
	q := url.Values{"specificTag": {tag}, "onlyActiveTags": {"false"}, "limit": {"100"}}
	for range maxTagPages {
		var page struct {
			Tags []struct {
				Digest oci.Digest `json:"manifest_digest"`
				End    int64      `json:"end_ts"` // 0: the tag has this digest
			} `json:"tags"`
			Next string `json:"next_page"`
		}
		if err := a.client.Get(a.ctx, api.Path("repository", repository, "tag")+"/", q, &page); err != nil {
			return states, refusal(err)
		}
		for _, t := range page.Tags {
			s := report.State{Digest: t.Digest}
			// An end in the future is the tag's expiration.
			if end := time.Unix(t.End, 0); t.End != 0 && !end.After(time.Now()) {
				s.End = end
			}
			if states = append(states, s); !s.End.IsZero() && s.End.Before(since) {
				return states, nil
			}
		}
		if page.Next == "" {
			return states, nil
		}
		q.Set("next_page", page.Next)
	}
	return states, &report.Refusal{Reason: fmt.Sprintf("it was moved more than %d times since then, of which only the last ones count", len(states))}
}

// Image returns the manifests whose configuration is `id`, and the manifest with this digest.
func (a asked) Image(repository string, id oci.Digest) (digests []oci.Digest, err error) {
	var found struct {
		Digests []oci.Digest `json:"digests"`
	}
	err = a.client.Get(a.ctx, api.Path("repository", repository, "image", id.String()), nil, &found)
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
