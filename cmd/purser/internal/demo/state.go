package demo

import (
	"context"
	"fmt"
	"slices"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/gc"
)

// contents says what the registry has: tags and manifests according to its API, objects and
// bytes according to a listing of its blob store.
type contents struct {
	tags, manifests, objects, bytes int64
}

// contents reads what the registry has.
func (t *tour) contents(ctx context.Context) (c contents, err error) {
	all := slices.Clone(repositories)
	for _, r := range pastRepositories {
		all = append(all, r.name)
	}
	for _, name := range all {
		r, err := api.GetRepository.Call(ctx, t.api, api.RepositorySizes{InRepository: api.InRepository{Repository: name}})
		if err != nil {
			return c, err
		}
		c.tags += r.Tags
		c.manifests += r.Manifests
	}
	for object, err := range t.registry.store.List(ctx, "") {
		if err != nil {
			return c, err
		}
		c.objects++
		c.bytes += object.Size
	}
	return c, nil
}

// garbage returns the state of garbage collection.
func (t *tour) garbage(ctx context.Context) (s gc.GCStatus, err error) {
	return api.GetGCStatus.Call(ctx, t.api, struct{}{})
}

// toReview returns the number of reviews that are still to come, whether they are due or not.
func toReview(s gc.GCStatus) int64 {
	return s.Manifests.Due.Rows + s.Manifests.Waiting.Rows + s.Blobs.Due.Rows + s.Blobs.Waiting.Rows
}

// progress describes the contents and what garbage collection still has to do.
func progress(c contents, s gc.GCStatus) string {
	text := fmt.Sprintf("%s, %s, %s, %s; %s reclaimed; to do: %s",
		command.Count(c.tags, "tag"), command.Count(c.manifests, "manifest"), command.Count(c.objects, "blob"), command.Size(c.bytes),
		command.Size(s.LastHour.Bytes), command.Count(toReview(s), "review"))
	if n := s.Doomed.Objects.Rows; n > 0 {
		text += ", " + command.Count(n, "deletion")
	}
	return text
}

// preview returns what a policy would delete in a repository; with policy nil, what the
// policies of the namespace and of its repositories would delete now.
func (t *tour) preview(ctx context.Context, at api.PolicyAt, policy *api.PolicyText) (api.JudgedPreview, error) {
	return api.PreviewPolicy.Call(ctx, t.api, api.PreviewInput{PolicyAt: at, Limit: 1, Body: policy})
}

// pulls returns the number of pulls that the statistics have for the tags of the tour's repositories.
func (t *tour) pulls(ctx context.Context) (sum int64, err error) {
	for _, name := range repositories {
		list, err := api.ListTags.Call(ctx, t.api, api.TagQuery{InRepository: api.InRepository{Repository: name}, Limit: 100})
		if err != nil {
			return 0, err
		}
		for _, tag := range list.Tags {
			if tag.PullCount != nil {
				sum += *tag.PullCount
			}
		}
	}
	return sum, nil
}

// pruned returns the number of tags that each policy has deleted, by the policy's uuid.
func (t *tour) pruned(ctx context.Context) (map[string]int64, error) {
	list, _, err := api.List(ctx, t.api, api.ListPruneRuns, api.PruneRunQuery{Namespace: namespace}, 0)
	if err != nil {
		return nil, err
	}
	deleted := make(map[string]int64)
	for _, summary := range list {
		if summary.Deleted == 0 {
			continue
		}
		run, err := api.GetPruneRun.Call(ctx, t.api, api.PruneRunItem{Run: summary.ID})
		if err != nil {
			return nil, err
		}
		for _, repository := range run.PerRepository {
			for policy, n := range repository.Policies {
				deleted[policy] += n
			}
		}
	}
	return deleted, nil
}
