package management

import (
	"context"

	"github.com/purser-registry/purser/internal/api"
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

// previewPolicy tells what policies would delete.
func (a *API) previewPolicy(ctx context.Context, in *api.PreviewInput) (*api.JudgedPreview, error) {
	policy, err := triedPolicy(in.Body)
	if err != nil {
		return nil, err
	}
	viewer, err := a.server.Viewer(ctx)
	if err != nil {
		return nil, err
	}
	o, t := autoprune.PreviewOptions{Policy: policy, HideBytes: in.TagsOnly || !viewer.Unlimited()}, targetOf(in.PolicyAt)
	if o.Limit, err = takePreview(ctx, min(in.Limit, api.MaxPreviewed)); err != nil {
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
	out := &api.JudgedPreview{Preview: *p}
	if policy != nil {
		out.Found, err = a.opt.Autoprune.Judge(ctx, t, autoprune.Change{Policy: policy})
	}
	return out, err
}
