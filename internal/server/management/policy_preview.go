package management

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/server"
)

// previewMemory is how many bytes of memory a preview takes for each tag of the limit: it has four lists,
// and an entry with long names takes 2 KiB as it is read and as it is sent.
const previewMemory = 8 << 10

// takePreview takes memory for a preview that lists up to `limit` tags in each list. It returns how many
// the preview lists: fewer, but not fewer than 100, if there isn't enough memory now.
func takePreview(ctx context.Context, limit int) (int, error) {
	lease := server.Observed(ctx).Lease
	for ; limit > 100; limit = max(limit/2, 100) {
		if lease.TryStream(int64(limit) * previewMemory) {
			return limit, nil
		}
	}
	_, err := lease.Take(ctx, int64(limit)*previewMemory)
	return limit, err
}

// addPreviews adds the operations that show what policies would delete.
func (a *API) addPreviews() {
	type namespaceInput struct {
		PolicyOfNamespace
		Limit    int         `query:"limit" minimum:"1" default:"100" doc:"Most tags of each list: tags that would be deleted, and tags that would stay. More than 10000 counts as 10000; the lists are shorter, but not below 100, if there is too little memory"`
		TagsOnly bool        `query:"tags_only" doc:"Leave out bytes_freed: to add up the bytes takes most of the time that a preview of many tags takes"`
		Body     *policyText `required:"false"`
	}
	type repositoryInput struct {
		PolicyOfRepository
		Limit    int         `query:"limit" minimum:"1" default:"100" doc:"Most tags of each list: tags that would be deleted, and tags that would stay. More than 10000 counts as 10000; the lists are shorter, but not below 100, if there is too little memory"`
		TagsOnly bool        `query:"tags_only" doc:"Leave out bytes_freed: to add up the bytes takes most of the time that a preview of many tags takes"`
		Body     *policyText `required:"false"`
	}
	type output struct{ Body judgedPreview }
	preview := func(ctx context.Context, t autoprune.Target, text *policyText, limit int, tagsOnly bool) (*output, error) {
		var o autoprune.PreviewOptions
		if text != nil && len(*text) > 0 {
			policy, err := text.parse("")
			if err != nil {
				return nil, err
			}
			o.Policy = &policy
		}
		viewer, err := a.server.Viewer(ctx)
		if err != nil {
			return nil, err
		}
		o.HideBytes = tagsOnly || !viewer.Unlimited()
		if o.Limit, err = takePreview(ctx, limit); err != nil {
			return nil, err
		}
		done, err := a.turn(ctx)
		if err != nil {
			return nil, err
		}
		defer done()
		p, err := a.opt.Autoprune.Preview(ctx, t, o)
		if err != nil {
			return nil, err
		}
		out := judgedPreview{Preview: *p}
		if o.Policy != nil {
			out.Found, err = a.opt.Autoprune.Judge(ctx, t, autoprune.Change{Policy: o.Policy})
		}
		return &output{out}, err
	}
	operation := func(of, name, path string) huma.Operation {
		return huma.Operation{
			OperationID: "preview" + name + "AutoPrunePolicy", Method: http.MethodPost, Path: path + "/autoprunepolicy/preview",
			Metadata: map[string]any{ownMemoryKey: true},
			Tags:     []string{"autoprune"}, Summary: "Tell what auto-pruning would delete in " + of,
			Description: "With a policy as the body: what that policy alone would delete. Without a body: what all policies " +
				"that apply now would. Nothing is changed. The judgement is the run's own; it is given up after a minute, " +
				"and complete is false then. Ask with tags_only=true first to show the tags at once, and then for the bytes.",
			Errors: []int{http.StatusNotFound, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType}, SkipValidateBody: true,
		}
	}
	add(a, auth.Maintain, operation("a namespace", "Organization", "/organization/{orgname}"), func(ctx context.Context, in *namespaceInput) (*output, error) {
		return preview(ctx, in.target(), in.Body, min(in.Limit, 10_000), in.TagsOnly)
	})
	add(a, auth.Maintain, operation("a repository", "Repository", "/repository/{repository}"), func(ctx context.Context, in *repositoryInput) (*output, error) {
		return preview(ctx, in.target(), in.Body, min(in.Limit, 10_000), in.TagsOnly)
	})
}
